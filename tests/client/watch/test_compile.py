"""A compiled model stays as it is: no graph break and no recompilation more than without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradwatch
from gradwatch._hooks.untraced import untraced
from gradwatch_wire import Manifest
from tests.support.recording import Sink

BACKEND = "aot_eager"  # traces forward and backward as inductor does, and needs no C++ compiler
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class Block(nn.Module):
    """A model for `compile` in place: a forward pass of one's own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.outer = nn.Linear(16, size)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.outer(torch.tanh(self.inner(x)))
        return y


@pytest.fixture(params=[True, False], ids=["marked", "wrapped"])
def _mark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks are marked for Dynamo, or wrapped where torch has no such mark (row A10)."""
    if not request.param:
        monkeypatch.setattr("gradwatch._hooks.untraced._mark_code", lambda: None)


def wrapped() -> Any:
    return torch.compile(nn.Sequential(Block(8), Block(1)), backend=BACKEND)


def in_part() -> Any:
    model = nn.Sequential(Block(8), Block(1))
    model[0].compile(backend=BACKEND)
    return model


def train(make: Callable[[], Any], attach: Any) -> tuple[dict[str, Any], Any]:
    """Train some steps; return what the compiler counted, and the model."""
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    reset()
    counters.clear()
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = gradwatch.NullWatch() if attach is None else attach(model, optimizer)
    for step in range(6):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        if step % 2:
            watch.collect(loss=loss)
        optimizer.step()
    return {kind: dict(counts) for kind, counts in counters.items()}, model


@pytest.mark.usefixtures("_mark")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [wrapped, in_part])
def test_watching_changes_nothing_for_the_compiler(
    aggregator: Sink, make: Callable[[], Any]
) -> None:
    plain, _ = train(make, None)
    watched, model = train(make, aggregator.attach)

    assert plain["stats"]["unique_graphs"] >= 1
    for kind in ("stats", "frames", "graph_break", "unimplemented", "recompiles"):
        assert watched.get(kind, {}) == plain.get(kind, {}), kind
    expected = {
        name.removeprefix("_orig_mod."): float(parameter.grad.double().norm())
        for name, parameter in model.named_parameters()
    }
    sent = aggregator.stats(6)
    assert aggregator.layers(sent[-1]) == pytest.approx(expected, rel=1e-5)
    assert [manifest.order for manifest in aggregator.of(Manifest)] == ["forward"]


def test_this_torch_has_the_mark() -> None:
    def hook() -> None:
        """Do nothing."""

    assert untraced(hook) is hook


@pytest.mark.usefixtures("_mark")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("whole", [False, True])
def test_a_compiled_step_has_no_more_breaks_and_recompilations(
    aggregator: Sink, whole: bool
) -> None:
    """`torch.compile` on the optimizer's step, and on a whole training step."""
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    def count(*, watched: bool) -> tuple[int, int, int, Any]:
        reset()
        counters.clear()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01))
        watch = aggregator.attach(model, optimizer) if watched else None
        own = optimizer.step if whole else torch.compile(optimizer.step, backend=BACKEND)

        def step(x: Tensor) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            own()

        compiled = torch.compile(step, backend=BACKEND) if whole else step
        for _ in range(6):
            compiled(torch.ones(3, 4))
        breaks, again = counters["graph_break"], counters["recompiles"]
        graphs = counters["stats"]["unique_graphs"]
        return graphs, sum(breaks.values()), sum(again.values()), watch

    *plain, _ = count(watched=False)
    *with_watch, watch = count(watched=True)

    assert plain[0] >= 1
    assert all(mine <= other for mine, other in zip(with_watch, plain, strict=True))
    assert watch.stats()["collected"] == 6
    assert watch.stats()["faults"] == 0


@pytest.mark.exhaustive
def test_compiled_autograd_keeps_its_graphs(aggregator: Sink) -> None:
    import torch._dynamo
    from torch._dynamo.utils import counters

    def count(*, watched: bool) -> tuple[list[int], Any]:
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        watch = aggregator.attach(model, optimizer, local=True) if watched else None

        @torch.compile(backend=BACKEND)
        def backward(x: Tensor) -> None:
            model(x).square().mean().backward()

        for _ in range(3):
            optimizer.zero_grad()
            backward(torch.ones(3, 4))
            optimizer.step()
        breaks = sum(counters["graph_break"].values())
        captures = counters["compiled_autograd"]["captures"]
        return [counters["stats"]["unique_graphs"], breaks, captures], watch

    # Setting the option back as monkeypatch does would take it away from all later tests.
    with torch._dynamo.config.patch(compiled_autograd=True):
        plain, _ = count(watched=False)
        watched, watch = count(watched=True)

    assert watched == plain
    assert [stats.labels["point"] for stats in aggregator.stats(3)] == ["optimizer_step"] * 3
    assert "compiled_autograd is set" in watch.stats()["last_error"]
    assert watch.stats()["faults"] == 1
