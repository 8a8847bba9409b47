"""The gain monitor: right norms from every kind of output, no sync, nothing kept, nothing left."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.utils.checkpoint import checkpoint

from gradwatch import gain_monitor
from gradwatch.gain_monitor import GradientGainMonitor
from tests.support.elsewhere import module_on


class Block(nn.Module):
    """Multiplies by a number; `wrap` makes its output of the product."""

    def __init__(self, factor: float, wrap: Callable[[Tensor], Any] = lambda h: h) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        self.hidden = self.factor * x
        return self.wrap(self.hidden)


class ModelOutput(OrderedDict[str, Any]):
    """As in Hugging Face's transformers: a dict whose values are attributes too."""

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.values())


class PlainOutput:
    """A model output that is no dict."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.__dict__.values())


def chain(*factors: float) -> nn.Sequential:
    return nn.Sequential(*map(Block, factors))


def backward(model: Callable[[Tensor], Tensor], scale: float = 1.0) -> None:
    """Give the last block's output, four ones, a gradient of `scale` in each element."""
    (scale * model(torch.ones(4))).sum().backward()


def decoy() -> Tensor:
    """A tensor that nobody should watch: it gets no gradient."""
    return torch.zeros(2)


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_blocks_on_a_device_that_attach_refuses_are_refused(kind: str) -> None:
    first, second = nn.Linear(2, 2), module_on(kind)
    with pytest.raises(ValueError, match=rf"^block 1 is on {kind}:0; .* cpu and cuda"):
        GradientGainMonitor([first, second])

    assert not first._forward_hooks


def test_norms_are_those_of_the_gradient_at_each_output() -> None:
    model = chain(5.0, 2.0, 0.25)
    with GradientGainMonitor(model) as monitor:
        backward(model, scale=3.0)

    assert monitor.norms() == pytest.approx([3.0, 1.5, 6.0])
    assert monitor.gains() == pytest.approx([2.0, 0.25])
    assert monitor.log_gains() == pytest.approx([math.log(2.0), math.log(0.25)])


def test_norms_equal_those_that_autograd_gives() -> None:
    """A reference of another kind: retained gradients of a small transformer."""
    torch.manual_seed(0)
    layers = nn.ModuleList(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(3)
    )
    kept = []
    with GradientGainMonitor(layers) as monitor:
        h = torch.randn(2, 5, 8)
        for layer in layers:
            h = layer(h)
            h.retain_grad()
            kept.append(h)
        h.square().sum().backward()

    expected = [float(h.grad.double().norm()) for h in kept if h.grad is not None]
    assert monitor.norms() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("norm_type", "expected"), [("l2", 5.0), ("l1", 7.0), ("linf", 4.0), ("mean", 7.0 / 3)]
)
def test_each_norm_type_is_the_norm_of_its_name(norm_type: str, expected: float) -> None:
    block = Block(1.0)
    with GradientGainMonitor([block], norm_type=norm_type) as monitor:
        (block(torch.ones(3)) * torch.tensor([3.0, -4.0, 0.0])).sum().backward()

    assert monitor.norms() == pytest.approx([expected])


@pytest.mark.parametrize("norm_type", ["l2", "l1", "linf", "mean"])
def test_an_output_without_elements_has_norm_zero(norm_type: str) -> None:
    block = Block(1.0)
    with GradientGainMonitor([block], norm_type=norm_type) as monitor:
        block(torch.ones(0)).sum().backward()

    assert monitor.norms() == [0.0]


def test_norms_of_half_precision_are_taken_without_overflow() -> None:
    """The gradient is 60000 in each of four elements; float16 ends at 65504."""
    block = Block(1.0).half()
    with GradientGainMonitor([block]) as monitor:
        block(torch.ones(4).half()).backward(torch.full((4,), 60000.0).half())

    assert monitor.norms() == pytest.approx([120000.0], rel=1e-3)


def test_nan_in_a_gradient_is_a_norm_of_nan_and_a_missing_gain() -> None:
    model = chain(1.0, math.nan, 1.0)
    with GradientGainMonitor(model) as monitor:
        backward(model)

    assert [math.isnan(norm or 0.0) for norm in monitor.norms()] == [True, False, False]
    assert monitor.gains() == [None, 1.0]


@pytest.mark.parametrize("container", [list, tuple, nn.ModuleList, lambda b: nn.Sequential(*b)])
def test_blocks_come_in_any_container(container: Callable[[list[nn.Module]], Any]) -> None:
    blocks = container([Block(1.0), Block(2.0), Block(3.0)])

    assert len(GradientGainMonitor(blocks)) == 3


def test_a_wrong_norm_type_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^norm_type must be one of l2, l1, linf, mean, not 'l3'"):
        GradientGainMonitor([Block(1.0)], norm_type="l3")


@pytest.mark.parametrize("eps", [0.0, -1.0, math.inf, math.nan])
def test_an_eps_that_is_not_a_positive_number_is_refused(eps: float) -> None:
    """Zero would divide by zero."""
    with pytest.raises(ValueError, match="eps must be a positive number"):
        GradientGainMonitor([Block(1.0)], eps=eps)


@pytest.mark.parametrize("blocks", [[], nn.ModuleList(), nn.Sequential()])
def test_a_monitor_of_no_blocks_is_empty(blocks: Any) -> None:
    """C18: an ablation may leave none; it measures nothing, and says so."""
    with GradientGainMonitor(blocks) as monitor:
        assert len(monitor) == 0
        assert monitor.take() == []
        assert "No gradients recorded: the monitor was given no blocks" in monitor.report()
        with pytest.raises(RuntimeError, match="No gradients recorded"):
            monitor.norms()
        monitor.reset()


@pytest.mark.parametrize("blocks", [[Block(1.0), "block"], nn.ModuleDict({"a": Block(1.0)}), "ab"])
def test_a_block_that_is_no_module_is_refused(blocks: Any) -> None:
    with pytest.raises(TypeError, match=r"block [01] must be a module, not a str"):
        GradientGainMonitor(blocks)


def test_a_single_module_in_place_of_a_list_is_refused() -> None:
    blocks: Any = Block(1.0)
    with pytest.raises(TypeError, match="blocks must be a list, ModuleList or Sequential"):
        GradientGainMonitor(blocks)


def test_the_same_module_twice_is_refused() -> None:
    block = Block(1.0)
    with pytest.raises(ValueError, match="block 2 is the same module as block 0"):
        GradientGainMonitor([block, Block(1.0), block])
    assert not block._forward_hooks


@pytest.mark.parametrize(
    "wrap",
    [
        lambda h: h,
        lambda h: (h, decoy()),
        lambda h: [None, h],
        lambda h: {"logits": decoy(), "last_hidden_state": decoy(), "hidden_states": h},
        lambda h: {"logits": decoy(), "last_hidden_state": h},
        lambda h: {"loss": None, "logits": h, "other": decoy()},
        lambda h: ModelOutput(logits=decoy(), last_hidden_state=decoy(), hidden_states=(0, h)),
        lambda h: ModelOutput(last_hidden_state=h, hidden_states=None),
        lambda h: ModelOutput(last_hidden_state=h, hidden_states=()),
        lambda h: PlainOutput(logits=decoy(), last_hidden_state=h),
        lambda h: PlainOutput(loss=None, logits=h),
    ],
)
def test_the_hidden_state_is_found_in_every_kind_of_output(wrap: Callable[[Tensor], Any]) -> None:
    block = Block(1.0, wrap)
    with GradientGainMonitor([block]) as monitor:
        block(torch.ones(4))
        block.hidden.sum().backward()

    assert monitor.norms() == [2.0]


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        (None, "NoneType"),
        (7.0, "float"),
        ((), "tuple"),
        ({"hidden_states": "h"}, "dict"),
        (torch.ones(2, dtype=torch.complex64, requires_grad=True), "Tensor"),
    ],
)
def test_an_output_without_a_real_tensor_is_refused_by_the_name_of_its_block(
    output: Any, kind: str
) -> None:
    model = nn.Sequential(Block(1.0), Block(1.0, lambda h: output))
    with (
        GradientGainMonitor(model),
        pytest.raises(
            TypeError, match=rf"block 1 \(Block\) returned a {kind} without a real tensor"
        ),
    ):
        model(torch.ones(4))


def test_without_gradients_a_block_may_return_anything() -> None:
    model = chain(1.0)
    model.append(Block(1.0, lambda h: "text"))
    with GradientGainMonitor(model), torch.no_grad():
        assert model(torch.ones(4)) == "text"


def test_with_on_error_a_wrong_output_is_told_and_training_goes_on() -> None:
    told: list[str] = []
    model = nn.Sequential(Block(2.0), Block(1.0, lambda h: PlainOutput(h=1)))
    with GradientGainMonitor(model, on_error=told.append) as monitor:
        model[0](torch.ones(4)).sum().backward()
        model(torch.ones(4))

    assert monitor.norms() == [2.0, None]
    assert len(told) == 1
    assert told[0].startswith("block 1 (Block) returned a PlainOutput")


def test_with_on_error_a_failure_in_backward_is_told_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(gain_monitor, "measure_norm", fail)
    told: list[str] = []
    model = chain(2.0)
    with GradientGainMonitor(model, on_error=told.append) as monitor:
        backward(model)

    assert told == ["no memory"]
    assert monitor.take() == [None]
    assert model[0].factor.grad == 4.0


@pytest.mark.parametrize("ask", ["norms", "gains", "log_gains", "summary_stats"])
def test_before_any_backward_there_is_nothing_to_ask_for(ask: str) -> None:
    """A forward pass alone gives none."""
    model = chain(1.0, 2.0)
    with GradientGainMonitor(model) as monitor:
        model(torch.ones(4))

        with pytest.raises(RuntimeError, match="No gradients recorded"):
            getattr(monitor, ask)()


def test_a_vanished_later_norm_makes_the_gain_infinite() -> None:
    model = chain(1.0, 4.0)
    with GradientGainMonitor(model, eps=1e-3) as monitor:
        backward(model, scale=1e-4)

    assert monitor.gains() == [math.inf]
    assert monitor.log_gains() == [math.inf]


def test_the_summary_has_its_keys_and_counts_every_transition_once() -> None:
    """Gains 4, 0.25, 1, then a frozen part on both sides of which gains are missing."""
    model = chain(1.0, 4.0, 0.25, 1.0)
    frozen = Block(1.0).requires_grad_(False)
    with GradientGainMonitor([frozen, *model]) as monitor:
        frozen(torch.ones(4))
        backward(model)
    summary = monitor.summary_stats()

    assert summary == {
        "mean_gain": pytest.approx(1.75),
        "min_gain": 0.25,
        "max_gain": 4.0,
        "mean_log_gain": pytest.approx(0.0),
        "num_amplifying": 1,
        "num_damping": 1,
        "num_healthy": 1,
        "num_vanishing": 0,
        "num_missing": 1,
    }


def test_one_block_has_no_transitions() -> None:
    model = chain(2.0)
    with GradientGainMonitor(model) as monitor:
        backward(model)

    assert (monitor.norms(), monitor.gains()) == ([2.0], [])
    assert monitor.summary_stats()["mean_gain"] is None
    assert "Block  0:" in monitor.report()


def test_the_report_has_its_sections_in_order_with_a_line_for_each_number() -> None:
    """Twelve blocks: numbers are two wide."""
    model = chain(1.0, 4.0, 0.25, *[1.0] * 9)
    with GradientGainMonitor(model) as monitor:
        backward(model)
    report = monitor.report()
    heads = ["Gradient Flow Analysis", "Gradient Norms:", "Gradient Gains"]
    heads += ["Summary Statistics:", "Transition Categories:"]
    places = [report.index(head) for head in heads]
    lines = {line.strip() for line in report.splitlines()}

    assert places == sorted(places)
    assert "heuristic" in report
    assert "Block  0:          2  Block" in lines
    assert "Block 11:          2  Block" in lines
    assert "Transition  0 to  1:          4  amplifying" in lines
    assert "Transition  1 to  2:       0.25  damping" in lines
    assert "Transition 10 to 11:          1  healthy" in lines
    assert "max gain     :          4" in lines
    assert "healthy      :   9  (in between)" in lines


def test_the_report_names_what_vanished_and_what_is_missing() -> None:
    """The last block is not part of the loss; what the one before passes on is nothing."""
    model = chain(1.0, 4.0)
    unused = Block(1.0)
    with GradientGainMonitor([*model, unused], eps=1e3) as monitor:
        backward(model)
    report = monitor.report()

    assert "Transition  0 to  1:        inf  vanishing" in report
    assert "Block  2:    missing" in report
    assert "Transition  1 to  2:    missing  missing" in report


def test_the_report_before_backward_says_so() -> None:
    assert "No gradients recorded" in GradientGainMonitor([Block(1.0)]).report()


def test_a_second_backward_without_reset_raises_in_strict_mode() -> None:
    model = chain(1.0, 2.0)
    with GradientGainMonitor(model) as monitor:
        backward(model)
        with pytest.raises(
            RuntimeError, match=r"block 1 \(Block\) fired twice: call reset\(\).*strict_single_bac"
        ):
            backward(model, scale=5.0)

        assert monitor.norms() == pytest.approx([4.0, 2.0])


def test_reset_makes_way_for_the_next_backward() -> None:
    model = chain(1.0, 2.0)
    with GradientGainMonitor(model) as monitor:
        backward(model)
        monitor.reset()
        with pytest.raises(RuntimeError, match="No gradients recorded"):
            monitor.norms()
        backward(model, scale=5.0)

        assert monitor.norms() == pytest.approx([20.0, 10.0])


def test_in_permissive_mode_the_last_backward_overwrites() -> None:
    model = chain(1.0, 2.0)
    with GradientGainMonitor(model, strict_single_backward=False) as monitor:
        backward(model)
        backward(model, scale=5.0)

    assert monitor.norms() == pytest.approx([20.0, 10.0])


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_gives_the_same_norms(reentrant: bool, strict: bool) -> None:
    """The recomputed forward pass counts once."""
    model = chain(1.0, 2.0, 3.0)
    with GradientGainMonitor(model, strict_single_backward=strict) as monitor:
        h = torch.ones(4, requires_grad=True)
        h = model[0](h)
        # One segment of two blocks: the recomputation runs the hooks of both.
        h = checkpoint(model[1:], h, use_reentrant=reentrant)
        h.sum().backward()

    assert monitor.norms() == pytest.approx([12.0, 6.0, 2.0])


def test_frozen_blocks_and_passes_without_grad_give_none() -> None:
    """A frozen block after a trained one passes gradients on, and has a norm."""
    model = chain(1.0, 2.0, 3.0)
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    with GradientGainMonitor(model) as monitor:
        with torch.no_grad():
            model(torch.ones(4))
        backward(model)

    assert monitor.norms() == [None, pytest.approx(6.0), pytest.approx(2.0)]
    assert monitor.gains() == [None, pytest.approx(3.0)]


def test_a_block_that_no_gradient_reaches_gives_none() -> None:
    """A function after it has none to give: PyTorch calls the hook with None."""

    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> None:
            return None

    model = chain(2.0, 3.0)
    with GradientGainMonitor(model) as monitor:
        h = model[0](torch.ones(4, requires_grad=True))
        stopped = Stop.apply(h)  # type: ignore[no-untyped-call]  # torch's own
        model[1](stopped).sum().backward()

    assert monitor.norms() == [None, 2.0]


def test_close_removes_every_hook_and_keeps_the_numbers() -> None:
    model = chain(1.0, 2.0)
    with GradientGainMonitor(model) as monitor:
        backward(model)
        waiting = model(torch.ones(4))
    assert not any(block._forward_hooks for block in model)

    waiting.sum().backward()
    backward(model)
    monitor.close()

    assert monitor.norms() == pytest.approx([4.0, 2.0])


def test_an_exception_inside_with_closes_too() -> None:
    model = chain(1.0)
    with pytest.raises(KeyError), GradientGainMonitor(model):
        raise KeyError

    assert not model[0]._forward_hooks


def test_a_model_that_is_watched_can_be_copied() -> None:
    """The copy, an average of the weights say, does not count as the model."""
    model = chain(1.0, 2.0)
    with GradientGainMonitor(model) as monitor:
        backward(copy.deepcopy(model))

        assert monitor.take() == [None, None]


def test_two_monitors_watch_the_same_blocks() -> None:
    model = chain(1.0, 2.0)
    with GradientGainMonitor(model) as two, GradientGainMonitor(model, norm_type="linf") as largest:
        backward(model)

    assert two.norms() == pytest.approx([4.0, 2.0])
    assert largest.norms() == pytest.approx([2.0, 1.0])


def test_take_gives_device_tensors_once() -> None:
    """0-d float64 without a graph; None where there was no gradient."""
    model = chain(1.0, 2.0)
    with GradientGainMonitor([*model, Block(1.0)]) as monitor:
        assert monitor.take() == [None, None, None]
        backward(model)
        first, second, third = monitor.take()

        assert monitor.take() == [None, None, None]
    assert first is not None
    assert second is not None
    assert third is None
    assert [float(first), float(second)] == pytest.approx([4.0, 2.0])
    assert (first.shape, first.dtype, first.requires_grad) == ((), torch.float64, False)


@pytest.mark.slow
def test_neither_gradients_nor_outputs_are_kept_alive() -> None:
    """With `create_graph` the gradient has a graph of its own."""
    model = chain(1.0, 2.0)
    alive: list[weakref.ref[Tensor]] = []
    with GradientGainMonitor(model) as monitor:
        h = model(torch.ones(4))
        alive.append(weakref.ref(h))
        h.register_hook(lambda gradient: alive.append(weakref.ref(gradient)))
        torch.autograd.grad(h.square().sum(), list(model.parameters()), create_graph=True)
        del h, model[1].hidden
        gc.collect()

        assert len(alive) == 2
        assert [reference() for reference in alive] == [None, None]
        assert all(n is not None and n.grad_fn is None for n in monitor.take())


def test_the_monitor_does_not_change_the_gradients() -> None:
    """Bit for bit."""
    torch.manual_seed(0)
    plain = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)))
    watched = copy.deepcopy(plain)
    x = torch.randn(5, 6)
    plain(x).sum().backward()
    with GradientGainMonitor(watched):
        watched(x).sum().backward()

    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(_grad(one), _grad(other))


def _grad(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.parametrize("norm_type", ["l2", "l1", "linf", "mean"])
def test_the_hooks_ask_the_device_for_nothing(norm_type: str) -> None:
    """A meta tensor has no value: to ask for one fails, as does to branch on it."""
    model = chain(1.0, 2.0).to("meta")
    with GradientGainMonitor(model, norm_type=norm_type) as monitor:
        model(torch.ones(4, device="meta")).sum().backward()

        assert [n.device.type for n in monitor.take() if n is not None] == ["meta", "meta"]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_hooks_do_not_synchronise_a_gpu() -> None:
    """CUDA itself raises where something waits; the numbers come when asked for."""
    model = chain(1.0, 2.0).cuda()
    x = torch.ones(4, device="cuda")
    model(x).sum().backward()  # what is set up once may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        with GradientGainMonitor(model) as monitor:
            model(x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert monitor.norms() == pytest.approx([4.0, 2.0])


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("whole", [True, False])
def test_what_is_compiled_after_the_monitor_is_measured(whole: bool) -> None:
    """The whole model, or each block, where `fullgraph` would raise at a graph break."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)))
    with GradientGainMonitor(model) as monitor:
        backward(model)
        expected = monitor.norms()
        compiled: Any = torch.compile(model, backend="aot_eager") if whole else model
        for block in () if whole else model:
            block.compile(backend="aot_eager", fullgraph=True)
        for _ in range(2):
            monitor.reset()
            backward(compiled)

            assert monitor.norms() == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_a_distributed_output_is_measured_locally_and_a_partial_sum_refused() -> None:
    """The norm of a partial sum would be wrong, and a right one needs a collective."""
    mesh = init_device_mesh("cpu", (1,))
    block = Block(1.0, lambda h: DTensor.from_local(h, mesh, [Replicate()]))
    with GradientGainMonitor([block]) as monitor:
        output = block(torch.ones(4))
        gradient = torch.ones(4) * 2
        output.backward(DTensor.from_local(gradient, mesh, [Replicate()]), retain_graph=True)
        assert monitor.norms() == [4.0]

        monitor.reset()
        with pytest.raises(TypeError, match=r"block 0 \(Block\) is a partial sum over ranks"):
            output.backward(DTensor.from_local(gradient, mesh, [Partial()]))
