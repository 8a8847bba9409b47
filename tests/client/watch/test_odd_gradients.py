"""Gradients of odd kinds, through `attach`: each costs its own number at most, never the record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from gradwatch_wire import Manifest
from gradwatch_wire.columns import MEASURED_COLUMNS
from tests.support.recording import Sink

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support"),
]

FLOAT8 = (
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
)


def nested(layout: torch.layout) -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)


ODD: dict[str, tuple[Callable[[], Tensor], str]] = {
    "csr": (lambda: torch.eye(3).to_sparse_csr(), "of layout torch.sparse_csr"),
    "csc": (lambda: torch.eye(3).to_sparse_csc(), "of layout torch.sparse_csc"),
    "mkldnn": (lambda: torch.ones(3, 3).to_mkldnn(), "of layout torch._mkldnn"),
    "nested": (lambda: nested(torch.strided), "that is a nested tensor"),
    "jagged": (lambda: nested(torch.jagged), "that is a nested tensor"),
    "wrapper": (
        lambda: TwoTensor(torch.ones(3), torch.ones(3)),
        "of class TwoTensor, which wraps others,",
    ),
    "meta": (lambda: torch.ones(3, device="meta"), "on the meta device"),
}


@pytest.mark.parametrize("kind", [kind for kind in ODD if kind != "nested"])
def test_one_odd_gradient_costs_its_own_number_and_is_named_once(
    aggregator: Sink, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """C44: the record comes with the others; the odd layer is like one without a gradient."""
    make, why = ODD[kind]
    model = nn.ParameterDict({"odd": nn.Parameter(make()), "plain": torch.ones(4)})
    watch = aggregator.attach(model)
    for step in range(3):
        model["odd"].grad = model["odd"].detach().clone()
        model["plain"].grad = torch.full((4,), float(step))
        watch.collect()
    sent = aggregator.stats(3)

    assert [aggregator.layers(stats) for stats in sent] == [{"plain": 2.0 * k} for k in range(3)]
    assert [manifest.names for manifest in aggregator.of(Manifest)] == [("plain",)]
    said = f"odd gradient: layer odd: a gradient {why} cannot be measured; the others are"
    assert watch.stats()["faults"] == 1
    assert watch.stats()["last_error"] == said
    assert [said in line for line in caplog.messages].count(True) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mkldnn", "nested", "jagged"])
def test_a_real_backward_pass_with_an_odd_parameter_is_recorded(
    aggregator: Sink, kind: str
) -> None:
    """C44: as autograd leaves it, with `local=True` as well."""
    odd = nn.Parameter(ODD[kind][0]())
    model = nn.ParameterDict({"odd": odd, "plain": torch.ones(4)})
    watch = aggregator.attach(model, torch.optim.SGD([model["plain"]], lr=0.1), local=True)
    values = odd.to_dense() if kind == "mkldnn" else odd * 2
    if kind == "nested":
        values = torch.nested.to_padded_tensor(values, 0.0)
    total = values.values().sum() if kind == "jagged" else values.sum()
    (total + model["plain"].sum()).backward()
    watch.collect()
    watch.close()
    (stats,) = aggregator.stats(1)

    assert odd.grad is not None
    assert aggregator.layers(stats) == aggregator.layers(stats, "local_l2") == {"plain": 2.0}


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("columns", [None, MEASURED_COLUMNS], ids=["default", "all"])
@pytest.mark.parametrize("foreach", ["1", "0"])
def test_float8_gradients_are_measured(
    aggregator: Sink,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    columns: Any,
    foreach: str,
) -> None:
    """C44: torch can do little with them, and nothing where they hold a NaN."""
    monkeypatch.setenv("GRADWATCH_FOREACH", foreach)
    model = nn.ParameterDict({name: torch.ones(3).to(dtype) for name in ("bad", "good")})
    model["bad"].grad = torch.tensor([1.0, math.nan, 2.0]).to(dtype)
    model["good"].grad = torch.tensor([1.0, 4.0, 2.0]).to(dtype)
    watch = aggregator.attach(model, columns=columns)
    stats = aggregator.collected(watch)
    norms = aggregator.layers(stats)

    assert math.isnan(norms["bad"])
    assert norms["good"] == pytest.approx(math.sqrt(21.0), rel=1e-6)
    assert aggregator.layers(stats, "nans") == {"bad": 1.0, "good": 0.0}
    if columns:
        assert aggregator.layers(stats, "l1")["good"] == pytest.approx(7.0)
        assert aggregator.layers(stats, "linf")["good"] == 4.0
        assert aggregator.layers(stats, "zeros") == {"bad": 0.0, "good": 0.0}
    assert watch.stats()["faults"] == 0


@pytest.fixture
def _as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients go the way of those on a GPU: to the kernel, in Triton's interpreter."""
    pytest.importorskip("triton")
    from gradwatch._statistics import statistics as module

    def measured(gradients: Any, columns: Any, out: Any) -> Any:
        on_host = {each.device.type for each in gradients} == {"cpu"}
        return module.cuda_statistics(gradients, columns, out if on_host else None)

    monkeypatch.setattr(module, "_statistics", measured)


@pytest.mark.slow
@pytest.mark.usefixtures("_as_on_cuda")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:numpy|triton")
@pytest.mark.parametrize("columns", [None, MEASURED_COLUMNS], ids=["default", "all"])
def test_of_all_kinds_at_once_each_that_can_be_read_is_measured(
    aggregator: Sink, caplog: pytest.LogCaptureFixture, columns: Any
) -> None:
    """The kernel has the plain ones, the next path those that it can read, of each kind."""
    threes = torch.full((3,), 3.0)
    kinds: dict[str, Tensor] = {
        "wrapper": TwoTensor(threes, threes),
        "plain": threes,
        "float8": threes.to(torch.float8_e4m3fn),
        "quantized": torch.quantize_per_tensor(threes, 1.0, 0, torch.quint8),
        "sparse": torch.sparse_coo_tensor(
            torch.tensor([[0, 0, 2]]), threes, (9,), check_invariants=True
        ),
        "meta": torch.ones(3, device="meta"),
        "gaps": torch.full((3, 2), 3.0)[:, 0],
        "short": threes.bfloat16(),
    }
    model = nn.ParameterDict(
        {name: nn.Parameter(kind, name != "quantized") for name, kind in kinds.items()}
    )
    watch = aggregator.attach(model, columns=columns)
    for _ in range(3):
        for name, kind in kinds.items():
            model[name].grad = kind
        watch.collect()
    sent = aggregator.stats(3)
    norm = math.sqrt(27.0)
    expected = dict.fromkeys(("plain", "float8", "gaps", "short"), norm)

    for stats in sent:
        assert aggregator.layers(stats) == pytest.approx(expected | {"sparse": math.sqrt(45.0)})
        assert stats.labels["path"] == "triton"
    odd = [line for line in caplog.messages if "odd gradient" in line]
    assert ["layer meta, wrapper: " in line for line in odd] == [True, False]
    assert "layer quantized: " in odd[1]
    assert watch.stats()["faults"] == 2


class OwnKind(Tensor):
    """A user's own kind of tensor, which has elements, and lets nobody compute with them."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in {"__get__", "detach", "numel", "backward"}:
            done: Any = super()
            return done.__torch_function__(func, types, args, kwargs or {})
        msg = f"no {getattr(func, '__name__', func)} here"
        raise TypeError(msg)


def test_a_subclass_with_elements_is_measured(aggregator: Sink) -> None:
    """C44: as the plain tensor that it is."""
    model = nn.ParameterDict({"odd": torch.ones(3), "plain": torch.ones(4)})
    watch = aggregator.attach(model)
    model["odd"].grad = torch.full((3,), 2.0).as_subclass(OwnKind)
    model["plain"].grad = torch.ones(4)
    stats = aggregator.collected(watch)

    assert aggregator.layers(stats) == {"odd": pytest.approx(math.sqrt(12.0)), "plain": 2.0}
    assert watch.stats()["faults"] == 0


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_kind_that_nobody_foresaw_costs_its_own_number(aggregator: Sink) -> None:
    """C44: when all together cannot be measured, those are found that can; once, not each step."""
    quantized = torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.quint8)
    odd = nn.Parameter(quantized, requires_grad=False)
    model = nn.ParameterDict({"odd": odd, "plain": torch.ones(4)})
    watch = aggregator.attach(model)
    for step in range(3):
        model["odd"].grad = quantized
        model["plain"].grad = torch.full((4,), float(step))
        watch.collect()
    sent = aggregator.stats(3)

    assert [aggregator.layers(stats) for stats in sent] == [{"plain": 2.0 * k} for k in range(3)]
    assert watch.stats()["faults"] == 1
    said = str(watch.stats()["last_error"])
    assert said.startswith("odd gradient: layer odd: a Tensor of torch.quint8 cannot be measured")


@pytest.mark.parametrize(("factor", "zeros"), [(1.0, 192), (0.0, 200)])
def test_zeros_of_a_sparse_gradient_are_those_of_all_elements(
    aggregator: Sink, factor: float, zeros: int
) -> None:
    """C10: those that are not stored, and those that are."""
    sparse, plain = nn.Embedding(50, 4, sparse=True), nn.Linear(4, 2)
    model = nn.ModuleDict({"sparse": sparse, "plain": plain})
    watch = aggregator.attach(model, columns=["l2", "zeros"])
    looked_up = sparse(torch.tensor([3, 3, 7]))
    (looked_up.sum() * factor + plain(torch.zeros(1, 4)).sum()).backward()
    stats = aggregator.collected(watch)

    assert sparse.weight.grad is not None
    assert int((sparse.weight.grad.to_dense() == 0).sum()) == zeros
    found = aggregator.layers(stats, "zeros")
    assert found == {"sparse.weight": zeros, "plain.weight": 8, "plain.bias": 0}


def test_zeros_of_a_sparse_gradient_that_stores_nothing_are_all(aggregator: Sink) -> None:
    """C10: no word of a batch was looked up."""
    model = nn.Embedding(50, 4, sparse=True)
    watch = aggregator.attach(model, columns=["l2", "zeros"])
    model(torch.empty(0, dtype=torch.int64)).sum().backward()
    stats = aggregator.collected(watch)

    assert aggregator.layers(stats, "zeros") == {"weight": 200}
    assert aggregator.layers(stats) == {"weight": 0.0}


@pytest.mark.slow
def test_parameters_without_elements_are_not_watched(aggregator: Sink) -> None:
    """C15: their norm of zero is no sign of a dead layer."""
    model = nn.ParameterDict({"empty": torch.empty(0, 4), "plain": torch.ones(4)})
    watch = aggregator.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for parameter in model.values():
        parameter.sum().backward()
    watch.close()
    (stats,) = aggregator.stats(1)

    assert model["empty"].grad is not None
    assert aggregator.layers(stats) == {"plain": 2.0}


@pytest.fixture(params=["meta", "cpu"])
def _default_device(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.set_default_device(request.param)
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("rank_0_of_2")
@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.usefixtures("_default_device")
@pytest.mark.parametrize("columns", [None, MEASURED_COLUMNS], ids=["default", "all"])
@pytest.mark.parametrize("size", [3, 400])
def test_the_default_device_changes_nothing(aggregator: Sink, columns: Any, size: int) -> None:
    """C47: small and large models, with all that `attach` can do besides."""
    cpu = torch.device("cpu")
    embedding = nn.Embedding(size, size, sparse=True, device=cpu)
    model = nn.Sequential(embedding, nn.Linear(size, size, device=cpu), nn.ReLU())
    for parameter in model.parameters():
        nn.init.constant_(parameter, 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    settings = {"columns": columns, "local": size == 3, "report_every": 2, "blocks": list(model)}
    with aggregator.attach(model, optimizer, **settings) as watch:
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.zeros(1, dtype=torch.int64, device=cpu)).sum()
            (loss * (math.nan if step == 3 else 1.0)).backward()
            watch.collect(loss=loss)
            optimizer.step()
    first, second = aggregator.stats(2)
    norms = aggregator.layers(first)

    assert watch.stats()["faults"] == 0
    assert norms["1.weight"] == pytest.approx(float(size), rel=1e-5)
    assert first.scalars["loss"] == pytest.approx(size * (size + 1.0))
    assert aggregator.layers(second, "nans")["1.weight"] == size**2
    assert second.scalars["first_nonfinite_step"] == 3.0
    if columns:
        assert aggregator.layers(first, "zeros")["0.weight"] == size**2 - size
    if size == 3:
        assert aggregator.layers(first, "local_l2") == pytest.approx(norms)


def test_what_is_measured_follows_the_device_that_the_gradients_are_on(aggregator: Sink) -> None:
    """C51: `model.cuda()` may come after `attach`."""
    sampler = aggregator.attach(nn.Linear(2, 2))._recorder._sampler

    assert tuple(sampler._columns_on(torch.device("cpu"))) == ("l2", "nans", "infs")
    assert tuple(sampler._columns_on(torch.device("cuda", 1))) == MEASURED_COLUMNS


def test_the_dtype_is_that_of_the_gradients_after_a_conversion(aggregator: Sink) -> None:
    """C51: `model.double()` keeps the parameters."""
    model = nn.Linear(4, 2)
    watch = aggregator.attach(model)
    for convert in (model.float, model.double, model.double):
        convert()
        model.zero_grad()
        model(torch.ones(1, 4, dtype=model.weight.dtype)).sum().backward()
        watch.collect()
    sent = aggregator.stats(3)
    manifests = {m.manifest_id: m for m in aggregator.of(Manifest)}
    dtypes = [manifests[stats.manifest_id].dtypes[0] for stats in sent]

    assert dtypes == ["float32", "float64", "float64"]
    assert len(manifests) == 2
