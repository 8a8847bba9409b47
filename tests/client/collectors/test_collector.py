"""The collectors: numbers without the service, right, and with one wait at most."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.overrides import TorchFunctionMode

from gradwatch import collector
from gradwatch._collectors import norms as _collector_norms
from gradwatch.collector import (
    AsyncDualGradStats,
    AsyncGradStats,
    DualGradientStats,
    GradientHealthMetrics,
    GradientHealthStats,
    SeedGradientCollector,
    collect_dual_gradients_async,
    collect_host_gradients_async,
    collect_seed_gradients,
    collect_seed_gradients_async,
    collect_seed_gradients_only_async,
    compute_grad_norm_surrogate,
    materialize_dual_grad_stats,
    materialize_grad_stats,
)
from gradwatch_wire import health
from gradwatch_wire.norms import total_norm
from tests.support.elsewhere import module_on

LARGEST = sys.float_info.max
WAITS = {"item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__float__", "__int__"}
EXTREMES = [
    (torch.float32, 1e10),
    (torch.float32, 1e20),
    (torch.float32, 3e38),
    (torch.float32, 1e-23),
    (torch.float32, 1e-38),
    (torch.float16, 60000.0),
    (torch.bfloat16, 3e38),
    (torch.float64, 1e300),
    (torch.float64, 1e-300),
]
NEUTRAL = GradientHealthStats(
    gradient_norm=0.0, gradient_health=1.0, has_vanishing=False, has_exploding=False
)


def params_with(*gradients: Tensor | None) -> list[nn.Parameter]:
    params = []
    for gradient in gradients:
        param = nn.Parameter(torch.zeros(1) if gradient is None else torch.zeros_like(gradient))
        param.grad = gradient
        params.append(param)
    return params


def of_norm(norm: float) -> Tensor:
    """A gradient of this L2 norm."""
    return torch.tensor([0.6 * norm, -0.8 * norm], dtype=torch.float64)


def reference(gradients: Sequence[Tensor]) -> float:
    """The L2 norm of all by Python's own arithmetic, which neither overflows nor underflows."""
    return math.hypot(*(x for g in gradients for x in g.double().flatten().tolist()))


def close(expected: float) -> Any:
    """Equal within the promised 1e-5, however small the number is."""
    return pytest.approx(expected, rel=1e-5, abs=0)


@pytest.fixture
def model() -> nn.Sequential:
    """A model after a backward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    model(torch.randn(5, 8)).square().sum().backward()
    return model


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    seen: list[str] = []
    paused = False

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = getattr(func, "__name__", "")
            if name in WAITS and not paused:
                seen.append(name)
            return func(*args, **(kwargs or {}))

    real = vars(_collector_norms)["statistics"]

    def unseen(*args: Any) -> Any:
        nonlocal paused
        paused = True
        try:
            return real(*args)
        finally:
            paused = False

    monkeypatch.setattr(_collector_norms, "statistics", unseen)
    with Mode():
        yield seen


# SeedGradientCollector


def test_the_collector_has_the_documented_thresholds_and_no_dict() -> None:
    """A misspelt attribute is an error."""
    made = SeedGradientCollector()

    assert (made.vanishing_threshold, made.exploding_threshold) == (1e-7, 100.0)
    assert not hasattr(made, "__dict__")
    with pytest.raises(AttributeError):
        made.threshold = 1.0  # type: ignore[attr-defined]


def test_the_collector_uses_its_own_thresholds_and_penalties() -> None:
    params = params_with(of_norm(1.0), of_norm(3.0), of_norm(10.0), of_norm(3.0))
    made = SeedGradientCollector(2.0, 5.0, vanishing_penalty=0.4, exploding_penalty=1.0)
    expected = {
        "gradient_norm": close(math.sqrt(119)),
        "gradient_health": pytest.approx(1 - 0.4 / 4 - 1.0 / 4),
        "has_vanishing": True,
        "has_exploding": True,
    }

    assert made.collect(params) == expected
    assert made.materialize(made.collect_async(params)) == expected


@pytest.mark.parametrize(
    "collect",
    [
        SeedGradientCollector().collect,
        SeedGradientCollector().collect_async,
        collect_seed_gradients,
        lambda params: collect_seed_gradients(params, return_enhanced=True),
        collect_seed_gradients_async,
        collect_host_gradients_async,
        collect_seed_gradients_only_async,
        lambda params: collect_dual_gradients_async(params, []),
        lambda params: collect_dual_gradients_async([], params),
    ],
)
class TestParameters:
    """Gradients that all collectors take, and those that they refuse."""

    def test_a_generator_is_consumed_once(self, collect: Callable[[Any], Any]) -> None:
        params = params_with(of_norm(3.0), None, of_norm(4.0))
        drawn = []

        def generator() -> Iterator[Tensor]:
            for param in params:
                drawn.append(param)
                yield param

        assert str(collect(generator())) == str(collect(params))
        assert len(drawn) == len(params)

    @pytest.mark.parametrize(
        ("params", "text"),
        [
            (nn.Linear(2, 2), "such as model.parameters(), got Linear"),
            (torch.ones(2, 2), "such as model.parameters(), got Tensor"),
            (None, "such as model.parameters(), got NoneType"),
            (list(nn.Linear(2, 2).named_parameters()), "[0]: a parameter or another tensor, got "),
            ([torch.zeros(1), "weight"], "[1]: a parameter or another tensor, got str"),
        ],
    )
    def test_what_is_no_parameter_is_refused(
        self, collect: Callable[[Any], Any], params: Any, text: str
    ) -> None:
        """A module, a bare tensor, pairs of name and parameter: told what was given and where."""
        with pytest.raises(TypeError) as caught:
            collect(params)

        assert text in str(caught.value)
        assert str(caught.value).startswith(("params", "host", "seed"))

    def test_a_complex_gradient_is_refused(self, collect: Callable[[Any], Any]) -> None:
        params = params_with(torch.ones(2), torch.ones(2, 3, dtype=torch.complex64))

        with pytest.raises(ValueError, match=r"\[1\].*shape \(2, 3\).*torch.complex64.*only real"):
            collect(params)

    def test_all_come_from_the_one_function(
        self, collect: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = []
        real = vars(_collector_norms)["statistics"]

        def spy(*args: Any) -> Any:
            calls.append(args)
            return real(*args)

        monkeypatch.setattr(_collector_norms, "statistics", spy)
        collect(params_with(of_norm(3.0), of_norm(4.0)))

        assert len(calls) == 1


@pytest.mark.parametrize("thresholds", [(-1.0, 1.0), (math.nan, 1.0), (0.0, -1.0), (0.0, math.nan)])
def test_thresholds_that_are_no_norm_are_refused(thresholds: tuple[float, float]) -> None:
    wrong = "vanishing_threshold" if not thresholds[0] >= 0 else "exploding_threshold"

    for call in (
        lambda: SeedGradientCollector(*thresholds),
        lambda: collect_seed_gradients_async([], *thresholds),
        lambda: collect_seed_gradients([], *thresholds),
        lambda: collect_seed_gradients([], *thresholds, return_enhanced=True),
    ):
        with pytest.raises(ValueError, match=rf"{wrong}: .* got (-1.0|nan)"):
            call()


# Statistics on the device


def test_pending_statistics_are_tensors_on_the_device() -> None:
    stats = collect_seed_gradients_async(
        params_with(of_norm(3.0), None, torch.zeros(0), of_norm(1e-8), of_norm(math.inf))
    )

    assert list(stats) == [
        "_empty",
        "_n_grads",
        "_total_squared_norm",
        "_all_norms",
        "_n_vanishing",
        "_n_exploding",
    ]
    assert (stats["_empty"], stats["_n_grads"]) == (False, 3)
    assert stats["_all_norms"].dtype == torch.float64
    assert stats["_all_norms"].tolist() == [close(3.0), close(1e-8), math.inf]
    assert stats["_total_squared_norm"].shape == stats["_n_vanishing"].shape == ()
    assert (stats["_n_vanishing"].item(), stats["_n_exploding"].item()) == (1, 1)
    assert not stats["_all_norms"].requires_grad


def test_the_total_is_the_sum_of_squares() -> None:
    stats = collect_seed_gradients_async(params_with(torch.full((7,), 3.0), torch.full((4,), 2.0)))

    assert stats["_total_squared_norm"].dtype == torch.float64
    assert stats["_total_squared_norm"].item() == close(7 * 9 + 4 * 4)


@pytest.mark.parametrize("params", [[], params_with(None), params_with(torch.zeros(0, 3))])
def test_without_gradients_pending_statistics_are_neutral(params: list[nn.Parameter]) -> None:
    stats = collect_seed_gradients_async(params)

    assert stats == {"_empty": True, "_n_grads": 0, **NEUTRAL}
    assert materialize_grad_stats(stats) == NEUTRAL
    assert collect_seed_gradients(params) == NEUTRAL
    assert materialize_grad_stats({"_empty": True, "_n_grads": 0}) == NEUTRAL


def test_collecting_reads_nothing_back() -> None:
    params = params_with(torch.ones(3), torch.ones(2, 4, device="meta"))

    stats = collect_seed_gradients_async(params)
    dual = collect_dual_gradients_async(params[:1], params[1:])

    assert stats["_all_norms"].shape == (2,)
    for value in (*stats.values(), *dual.values()):
        assert not isinstance(value, Tensor) or value.device.type == "meta"
    with pytest.raises(NotImplementedError, match="no data"):
        collect_seed_gradients(params)


def test_every_key_is_documented() -> None:
    page = Path(__file__).parents[3].joinpath("docs/collectors.md").read_text("utf-8")

    for kind in (AsyncGradStats, GradientHealthStats, AsyncDualGradStats, GradientHealthMetrics):
        for key in kind.__annotations__:
            assert f"`{key}`" in page, key
    for name in collector.__all__:
        assert f"`{name}" in page, name


# Statistics at hand


def test_the_norm_is_the_one_that_clipping_reports(model: nn.Sequential) -> None:
    """Global, before clipping, not divided by the number of tensors."""
    stats = collect_seed_gradients(model.parameters())

    assert stats["gradient_norm"] == close(float(clip_grad_norm_(model.parameters(), 1e-3)))
    assert [type(value) for value in stats.values()] == [float, float, bool, bool]


@pytest.mark.parametrize(("dtype", "value"), EXTREMES, ids=str)
def test_finite_gradients_have_finite_norms_and_never_zero(
    dtype: torch.dtype, value: float
) -> None:
    """Per tensor and in total, in every function; squares may leave any range."""
    gradients = [torch.full((n,), value, dtype=dtype) for n in (3, 1000, 5)]
    module = nn.ParameterList(params_with(*gradients))
    expected = close(reference(gradients))

    assert collect_seed_gradients(module)["gradient_norm"] == expected
    metrics = collect_seed_gradients(module, return_enhanced=True)
    assert metrics.gradient_norm == expected
    assert metrics.min_layer_norm == close(reference(gradients[:1]))
    assert metrics.max_layer_norm == close(reference(gradients[1:2]))
    assert compute_grad_norm_surrogate(module) == expected
    dual = materialize_dual_grad_stats(collect_dual_gradients_async(module, list(module)[:1]))
    assert dual.host_grad_norm == expected
    assert dual.seed_grad_norm == close(reference(gradients[:1]))


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(st.floats(min_value=0, allow_infinity=False), min_size=1, max_size=9))
def test_norms_are_put_together_without_overflow_and_underflow(norms: list[float]) -> None:
    total = total_norm(torch.tensor(norms, dtype=torch.float64), torch).item()

    assert total == pytest.approx(min(math.hypot(*norms), LARGEST), rel=1e-12, abs=1e-323)
    assert (total == 0) == (max(norms) == 0)


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ([1.0, math.inf], math.inf),
        ([math.inf, math.nan, 1.0], math.nan),
        ([LARGEST, LARGEST], LARGEST),
    ],
)
def test_a_total_is_infinite_only_if_a_norm_is(norms: list[float], expected: float) -> None:
    total = total_norm(torch.tensor(norms, dtype=torch.float64), torch).item()

    assert str(total) == str(expected)


@pytest.mark.parametrize(
    ("norms", "vanishing", "exploding", "expected"),
    [
        ([1.0, 2.0], False, False, 1.0),
        ([1.0, 0.9e-7], True, False, 0.75),
        ([1.0, 1.1e-7], False, False, 1.0),
        ([0.0, 0.0], True, False, 0.5),
        ([1.0, 101.0], False, True, 0.6),
        ([1.0, 99.0], False, False, 1.0),
        ([1e-8, 101.0], True, True, 1 - 0.25 - 0.4),
        ([math.nan, 1.0], False, True, 0.0),
        ([math.inf, math.nan], False, True, 0.0),
    ],
)
def test_health_falls_with_vanishing_and_exploding_gradients(
    norms: list[float], vanishing: bool, exploding: bool, expected: float
) -> None:
    params = params_with(*(of_norm(norm) for norm in norms))
    stats = collect_seed_gradients(params)
    metrics = collect_seed_gradients(params, return_enhanced=True)

    assert stats["gradient_health"] == pytest.approx(expected)
    assert (stats["has_vanishing"], stats["has_exploding"]) == (vanishing, exploding)
    assert {key: str(value) for key, value in stats.items()}.items() <= {
        key: str(value) for key, value in metrics.to_dict().items()
    }.items()


def test_an_infinite_threshold_still_finds_what_is_not_finite() -> None:
    """Inf is not above it, but exploding all the same."""
    params = params_with(of_norm(math.inf))

    assert collect_seed_gradients(params, exploding_threshold=math.inf)["has_exploding"]
    assert not collect_seed_gradients(params_with(of_norm(1e300)), 0, math.inf)["has_exploding"]


def test_a_caller_can_change_the_penalties() -> None:
    params = params_with(of_norm(0.0), of_norm(1.0), of_norm(1e3), of_norm(1.0))
    changed: dict[str, Any] = {"vanishing_penalty": 0.8, "exploding_penalty": 0.4}

    assert collector.VANISHING_HEALTH_PENALTY is health.VANISHING_HEALTH_PENALTY
    assert collector.EXPLODING_HEALTH_PENALTY is health.EXPLODING_HEALTH_PENALTY
    pending = collect_seed_gradients_async(params)
    assert materialize_grad_stats(pending, **changed)["gradient_health"] == pytest.approx(0.7)
    assert collect_seed_gradients(params, **changed)["gradient_health"] == pytest.approx(0.7)
    enhanced = collect_seed_gradients(params, return_enhanced=True, **changed)
    assert enhanced.gradient_health == pytest.approx(0.7)


@pytest.mark.parametrize("enhanced", [False, True])
def test_collecting_waits_once(model: nn.Sequential, waits: list[str], enhanced: bool) -> None:
    collect_seed_gradients(model.parameters(), return_enhanced=enhanced)

    assert waits == ["tolist"]


def test_materializing_is_one_transfer(model: nn.Sequential, waits: list[str]) -> None:
    pending = collect_seed_gradients_async(model.parameters())
    dual = collect_dual_gradients_async(model.parameters(), model.parameters(), "cpu")
    assert waits == []
    materialize_grad_stats(pending)
    assert waits == ["tolist"]
    materialize_dual_grad_stats(dual)
    assert waits == ["tolist", "tolist"]


# GradientHealthMetrics


def test_metrics_count_what_is_in_the_gradients() -> None:
    gradients = [
        torch.tensor([[0.0, 3.0], [-0.0, 4.0]]),
        torch.tensor([math.nan, math.inf, -math.inf, 1.0, 0.0], dtype=torch.float16),
        torch.arange(24.0).view(2, 3, 4)[:, ::2].transpose(0, 2),
        torch.zeros(0),
    ]
    metrics = collect_seed_gradients(params_with(*gradients), return_enhanced=True)
    elements = torch.cat([gradient.double().flatten() for gradient in gradients])

    assert metrics.zero_grad_fraction == pytest.approx(int((elements == 0).sum()) / len(elements))
    assert metrics.nan_count == int(elements.isnan().sum()) == 1
    assert metrics.inf_count == int(elements.isinf().sum()) == 2
    assert math.isnan(metrics.gradient_norm)
    assert math.isnan(metrics.max_layer_norm)
    assert math.isnan(metrics.min_layer_norm)
    assert metrics.norm_ratio == close(reference(gradients[2:3]) / 5)
    assert all(isinstance(count, int) for count in (metrics.nan_count, metrics.inf_count))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_zeros_that_a_sparse_gradient_leaves_out_are_zeros() -> None:
    indices, values = torch.tensor([[1, 1, 3]]), torch.tensor([1.0, 2.0, 0.0])
    (sparse,) = params_with(torch.zeros(5))
    sparse.grad = torch.sparse_coo_tensor(indices, values, (5,))
    empty = nn.Parameter(torch.zeros(4))
    empty.grad = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), [], (4,))

    metrics = collect_seed_gradients([sparse], return_enhanced=True)
    assert (metrics.gradient_norm, metrics.zero_grad_fraction) == (close(3.0), 0.8)
    assert collect_host_gradients_async([sparse])["_host_param_count"] == 5
    dead = collect_seed_gradients([empty], return_enhanced=True)
    assert (dead.has_vanishing, dead.zero_grad_fraction) == (True, 1.0)


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ([2.0, 8.0, 4.0], 4.0),
        ([0.0, 0.0], 1.0),
        ([5.0], 1.0),
        ([1e300, 1e-300], LARGEST),
        ([math.nan, 2.0, 6.0, math.inf], 3.0),
        ([math.nan, math.inf], 1.0),
    ],
)
def test_the_ratio_of_norms_is_always_finite(norms: list[float], expected: float) -> None:
    """Largest over smallest of the finite ones."""
    params = params_with(*(of_norm(norm) for norm in norms))

    assert collect_seed_gradients(params, return_enhanced=True).norm_ratio == close(expected)


def test_a_dead_layer_makes_the_ratio_large_but_finite() -> None:
    metrics = collect_seed_gradients(params_with(of_norm(0.0), of_norm(1.0)), return_enhanced=True)

    assert 1e300 < metrics.norm_ratio <= LARGEST
    assert (metrics.min_layer_norm, metrics.max_layer_norm) == (0.0, close(1.0))


def test_metrics_without_gradients_are_neutral() -> None:
    metrics = collect_seed_gradients(iter(()), return_enhanced=True)

    assert metrics.to_dict() == {
        **NEUTRAL,
        "min_layer_norm": 0.0,
        "max_layer_norm": 0.0,
        "norm_ratio": 1.0,
        "zero_grad_fraction": 0.0,
        "nan_count": 0,
        "inf_count": 0,
    }
    assert metrics.is_healthy()
    assert not hasattr(metrics, "__dict__")


WELL: dict[str, Any] = {
    **NEUTRAL,
    "min_layer_norm": 1.0,
    "max_layer_norm": 1000.0,
    "norm_ratio": 1000.0,
    "zero_grad_fraction": 0.5,
    "nan_count": 0,
    "inf_count": 0,
}


@pytest.mark.parametrize(
    "change",
    [
        {"has_vanishing": True},
        {"has_exploding": True},
        {"nan_count": 1},
        {"inf_count": 1},
        {"norm_ratio": 1000.1},
        {"zero_grad_fraction": 0.51},
    ],
)
def test_one_thing_wrong_is_not_healthy(change: dict[str, Any]) -> None:
    """The limits themselves still are."""
    assert GradientHealthMetrics(**WELL).is_healthy()
    assert not GradientHealthMetrics(**{**WELL, **change}).is_healthy()


def test_the_limits_of_healthy_can_be_changed() -> None:
    metrics = GradientHealthMetrics(**WELL)

    assert not metrics.is_healthy(max_norm_ratio=999.0)
    assert not metrics.is_healthy(max_zero_fraction=0.4)
    far = GradientHealthMetrics(**{**WELL, "norm_ratio": 5e3, "zero_grad_fraction": 0.9})
    assert far.is_healthy(max_norm_ratio=1e4, max_zero_fraction=0.95)


# Host and seed


def test_host_and_seed_are_measured_side_by_side(model: nn.Sequential) -> None:
    """Squared sums on the device, numbers of elements on the host."""
    host, seed = list(model[0].parameters()), list(model[2].parameters())
    stats = collect_dual_gradients_async(host, iter(seed))
    norms = [reference([p.grad for p in side if p.grad is not None]) for side in (host, seed)]

    assert stats["_host_squared_sum"].shape == stats["_seed_squared_sum"].shape == ()
    assert stats["_host_squared_sum"].item() == close(norms[0] ** 2)
    assert stats["_seed_squared_sum"].item() == close(norms[1] ** 2)
    assert (stats["_host_param_count"], stats["_seed_param_count"]) == (8 * 16 + 16, 16 * 4 + 4)
    assert materialize_dual_grad_stats(stats) == DualGradientStats(
        close(norms[0]), 144, close(norms[1]), 68
    )


def test_each_side_alone_is_half_of_both(model: nn.Sequential) -> None:
    """The halves make the whole."""
    host, seed = list(model[0].parameters()), list(model[2].parameters())
    both = collect_dual_gradients_async(host, seed)
    halves = {**collect_host_gradients_async(host), **collect_seed_gradients_only_async(seed)}

    assert halves == both
    assert list(collect_host_gradients_async([])) == [key for key in both if "host" in key]
    assert list(collect_seed_gradients_only_async([])) == [key for key in both if "seed" in key]


def test_parameters_without_gradient_are_not_counted() -> None:
    """A frozen one would dilute the norm."""
    stats = collect_host_gradients_async(params_with(None, of_norm(2.0), torch.zeros(0)))

    assert stats["_host_param_count"] == 2


@pytest.mark.parametrize("params", [[], params_with(None)])
def test_without_gradients_sums_are_zero_tensors(params: list[nn.Parameter]) -> None:
    stats = collect_dual_gradients_async(params, iter(params))
    host = collect_host_gradients_async(params)
    seed = collect_seed_gradients_only_async(params)

    for squared in (stats["_host_squared_sum"], stats["_seed_squared_sum"]):
        assert (squared.dtype, squared.shape, squared.item()) == (torch.float64, (), 0.0)
    assert (stats["_host_param_count"], stats["_seed_param_count"]) == (0, 0)
    assert host["_host_squared_sum"].item() == seed["_seed_squared_sum"].item() == 0.0
    found = materialize_dual_grad_stats(stats)
    assert found == DualGradientStats(0.0, 0, 0.0, 0)
    assert found.normalized_ratio == 0.0


def test_the_device_comes_from_the_first_gradient_unless_given() -> None:
    """An empty side goes where the other is."""
    meta = params_with(None, torch.ones(2, device="meta"))
    here = params_with(torch.ones(2))

    assert collect_host_gradients_async(meta)["_host_squared_sum"].device.type == "meta"
    assert collect_dual_gradients_async([], meta)["_host_squared_sum"].device.type == "meta"
    assert collect_dual_gradients_async(meta, [])["_seed_squared_sum"].device.type == "meta"
    for stats in (
        collect_host_gradients_async(here, "meta"),
        collect_seed_gradients_only_async(here, torch.device("meta")),
        collect_dual_gradients_async(here, [], "meta"),
        collect_host_gradients_async([], "meta"),
    ):
        tensors = [value for value in stats.values() if isinstance(value, Tensor)]
        assert tensors
        assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize("device", ["cuda:99", "xpu:99", "gpu", 99])
def test_a_device_that_does_not_exist_is_refused(device: str | int) -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda params: collect_host_gradients_async(params, device),
        lambda params: collect_seed_gradients_only_async(params, device),
        lambda params: collect_dual_gradients_async(params, params, device),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=rf"device: '{device}' does not exist; there are: cpu"):
            call("no parameters at all")


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_a_device_that_attach_refuses_is_refused_here_as_well(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Gradients on it, and numbers that are to lie there, in the same words."""
    module = module_on(kind)
    module.weight.grad = module_on(kind).weight
    said = f"on {kind}:0; gradients are measured on cpu and cuda "
    calls: list[Callable[[Any], Any]] = [
        collect_seed_gradients,
        collect_seed_gradients_async,
        collect_host_gradients_async,
        lambda params: collect_dual_gradients_async([], params),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=rf"^\w+\[0\]: its gradient is {said}"):
            call(module.parameters())
    with pytest.raises(ValueError, match=said):
        compute_grad_norm_surrogate(module)

    there = torch.empty(0, device=torch.device("cpu"))
    monkeypatch.setattr(torch, "empty", lambda *_, **__: module_on(kind).weight)
    with pytest.raises(ValueError, match=rf"^device: '{kind}' cannot be used; .* cpu and cuda"):
        collect_host_gradients_async([there], kind)


def test_squared_sums_alone_are_enough() -> None:
    stats: AsyncDualGradStats = {
        "_host_squared_sum": torch.tensor(16.0),
        "_host_param_count": 4,
        "_seed_squared_sum": torch.tensor(9.0),
        "_seed_param_count": 9,
    }

    assert materialize_dual_grad_stats(stats) == DualGradientStats(4.0, 4, 3.0, 9)


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        (DualGradientStats(8.0, 16, 3.0, 9), 0.5),
        (DualGradientStats(0.0, 16, 3.0, 9), 0.0),
        (DualGradientStats(8.0, 16, 0.0, 9), 0.0),
        (DualGradientStats(8.0, 0, 3.0, 9), 0.0),
        (DualGradientStats(8.0, 16, 3.0, 0), 0.0),
    ],
)
def test_the_ratio_compares_root_mean_squares(stats: DualGradientStats, expected: float) -> None:
    """(seed / √seed params) / (host / √host params); 0.0 where a side is missing."""
    assert stats.normalized_ratio == pytest.approx(expected)
    assert not hasattr(stats, "__dict__")


# The rest


def test_the_surrogate_is_the_norm_of_all_gradients(model: nn.Sequential) -> None:
    """A float; None before any backward pass."""
    norm = compute_grad_norm_surrogate(model)

    assert type(norm) is float
    assert norm == close(reference([p.grad for p in model.parameters() if p.grad is not None]))
    assert compute_grad_norm_surrogate(nn.Linear(2, 2)) is None
    assert compute_grad_norm_surrogate(nn.Identity()) is None
    with pytest.raises(TypeError, match=r"module: a torch.nn.Module, got list"):
        compute_grad_norm_surrogate([])  # type: ignore[arg-type]


def test_a_slower_path_is_warned_of_with_its_cause(
    model: nn.Sequential, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing falls back silently (row B6)."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("no rows today")

    monkeypatch.setattr("gradwatch._statistics.statistics.row_statistics", broken)
    with pytest.warns(RuntimeWarning, match="slower path, public; rows: .*no rows today"):
        collect_seed_gradients(model.parameters())


@pytest.mark.slow
def test_threads_collect_at_once() -> None:
    groups = [params_with(*(of_norm(float(n)) for n in range(1, k + 2))) for k in range(8)]
    expected = [close(math.sqrt(sum(n * n for n in range(1, k + 2)))) for k in range(8)]
    shared = SeedGradientCollector()

    def collect(params: list[nn.Parameter]) -> list[float]:
        return [shared.collect(params)["gradient_norm"] for _ in range(50)]

    with ThreadPoolExecutor(8) as pool:
        for found, norm in zip(pool.map(collect, groups), expected, strict=True):
            assert found == [norm] * 50


def test_the_page_runs_as_it_stands() -> None:
    page = Path(__file__).parents[3].joinpath("docs/collectors.md").read_text("utf-8")
    names: dict[str, Any] = {}
    blocks = page.split("```python\n")[1:]

    assert len(blocks) >= 3
    for block in blocks:
        exec(block.split("```")[0], names)


def test_every_function_has_its_lines() -> None:
    for name in collector.__all__:
        value = getattr(collector, name)
        assert not callable(value) or inspect.getdoc(value), name
    assert collector.__all__ == sorted(collector.__all__, key=lambda n: (not n.isupper(), n))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestCuda:
    """On a GPU."""

    def test_nothing_waits_before_the_numbers_are_asked_for(self) -> None:
        """Torch itself would raise."""
        params = params_with(*(torch.full((n,), 2.0, device="cuda") for n in (1, 4, 9)))
        collect_seed_gradients(params)  # compiles what there is to compile
        torch.cuda.set_sync_debug_mode("error")
        try:
            stats = collect_seed_gradients_async(params)
            dual = collect_dual_gradients_async(params[:1], params[1:])
        finally:
            torch.cuda.set_sync_debug_mode("default")

        assert materialize_grad_stats(stats)["gradient_norm"] == close(math.sqrt(56))
        assert materialize_dual_grad_stats(dual).host_grad_norm == close(2.0)

    def test_gradients_of_several_devices_keep_their_order(self) -> None:
        gradients = [of_norm(1.0), of_norm(2.0).cuda(), of_norm(3.0)]
        stats = collect_seed_gradients_async(params_with(*gradients))

        assert stats["_all_norms"].device.type == "cuda"
        assert stats["_all_norms"].tolist() == [close(1.0), close(2.0), close(3.0)]
        assert materialize_grad_stats(stats)["gradient_norm"] == close(math.sqrt(14))
