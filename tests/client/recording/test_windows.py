"""Backward passes and optimizer steps in the orders in which people's loops bring them.

A real model, real optimizers and the real hooks; only what is measured is a plain norm, which each
test compares with the norm it takes itself at the right moment.
"""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from gradwatch._faults import Faults
from gradwatch._hooks.backward import BackwardPasses
from gradwatch._hooks.optimizer_steps import OptimizerSteps
from gradwatch._recording.loss_scale import LossScale
from gradwatch._recording.recorder import Recorder
from gradwatch._recording.schedule import Schedule
from gradwatch._recording.step_counter import StepCounter
from gradwatch._recording.windows import StepWindows
from gradwatch_wire.names import Point

TAKEN, SKIPPED = True, False


@dataclass
class Record:
    """Result of a window."""

    optimizer: int
    step: int
    norms: list[float]  # one per pass
    point: Point
    taken: bool


class Norms:
    """Measures total norms and keeps what is reported."""

    windows: StepWindows

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self.optimizers = optimizers
        self.records: list[Record] = []
        self.pending: dict[int, tuple[list[float], Point]] = {}
        self.empty = 0

    def measure(self, optimizer: int, step: int, point: Point) -> bool:
        norm = norm_of(self.optimizers[optimizer])
        if norm is None:
            self.empty += 1
            return False
        norms, _ = self.pending.get(optimizer, ([], point))
        self.pending[optimizer] = ([*norms, norm], point)
        return True

    @property
    def observed(self) -> Norms:
        """There are no observers."""
        return self

    def pass_over(self) -> None:
        """Every step is due."""

    def forget(self, optimizer: int) -> None:
        self.pending.pop(optimizer, None)

    def report(self, optimizer: int, step: int, part: int, *, taken: bool, carried: bool) -> None:
        """Keep the record."""
        if optimizer in self.pending:
            norms, point = self.pending.pop(optimizer)
            self.records.append(Record(optimizer, step, norms, point, taken))

    def is_wanted(self, optimizer: int, step: int) -> bool:
        return True

    def end_step(self, optimizer: int, *, may_rest: bool) -> None:
        """No step is only counted."""

    def begin_step(self, optimizer: int, *, has_closure: bool) -> None:
        """No loss scale to settle."""

    def add_scalars(self, optimizer: int, step: int, *, is_another: bool) -> None:
        """Nothing is given here."""

    def note_pass(self, optimizer: int) -> None:
        """No scaler is known."""

    def was_skipped(self, optimizer: int) -> bool:
        return False

    def collected_again(self) -> None:
        """Not told here."""


def norm_of(optimizer: Optimizer) -> float | None:
    """Return the total norm of an optimizer's gradients, None if it has none."""
    grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    if not grads:
        return None
    return float(torch.linalg.vector_norm(torch.stack([g.double().norm() for g in grads])))


class Loop:
    """A watch in small around real optimizers."""

    def __init__(self, *optimizers: Optimizer, model: nn.Module | None = None) -> None:
        self.faults = Faults()
        self.norms = Norms(list(optimizers))
        self.model = model
        self.windows = StepWindows(
            cast(Recorder, self.norms),
            StepCounter(len(optimizers)),
            len(optimizers),
            self._is_training,
            cast(LossScale, self.norms),
        )
        schedule = Schedule(1)
        self.passes = BackwardPasses(self.windows.end_pass, schedule, self.faults)
        for number, optimizer in enumerate(optimizers):
            self.passes.watch(number, [p for g in optimizer.param_groups for p in g["params"]])
        self.norms.windows = self.windows
        self.steps = OptimizerSteps(
            list(optimizers), cast(Recorder, self.norms), schedule, self.passes, self.faults
        )

    def _is_training(self) -> bool:
        return self.model is None or self.model.training

    def close(self) -> list[Record]:
        self.windows.close()
        self.passes.close()
        self.steps.close()
        assert not self.faults.counts
        return self.norms.records


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def sgd(*models: nn.Module, lr: float = 0.05) -> torch.optim.SGD:
    """An optimizer of all parameters of some models."""
    return torch.optim.SGD([p for m in models for p in m.parameters()], lr=lr)


def loss_of(model: nn.Module, seed: int = 0, scale: float = 1.0) -> Tensor:
    """A loss on a random batch."""
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
    loss: Tensor = model(x).pow(2).sum() * scale
    return loss


def _raise(_: Tensor) -> None:
    raise ZeroDivisionError


def check(records: list[Record], *expected: tuple[int, float | None, bool]) -> None:
    """Compare `(step, last norm, taken)` of all records."""
    found = [(r.step, r.taken) for r in records]
    assert found == [(step, taken) for step, _, taken in expected]
    for record, (_, norm, _) in zip(records, expected, strict=True):
        assert record.norms[-1] == pytest.approx(norm, rel=1e-6, nan_ok=True)


def retain_graph(model: nn.Sequential, _step: int) -> None:
    model.zero_grad()
    shared = model[0](torch.ones(2, 4))
    shared.sum().backward(retain_graph=True)
    model[2](shared).sum().backward()


def penalize(model: nn.Sequential, step: int) -> None:
    """`autograd.grad` is no pass, and double backward is one."""
    model.zero_grad()
    x = torch.ones(2, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (loss_of(model, step) + grad.pow(2).sum()).backward()


def never_zero(model: nn.Sequential, step: int) -> None:
    loss_of(model, step).backward()


@pytest.mark.parametrize("backward", [retain_graph, penalize, never_zero])
def test_gradients_of_unusual_passes(
    backward: Callable[[nn.Sequential, int], None], model: nn.Sequential
) -> None:
    optimizer = sgd(model)
    loop, expected = Loop(optimizer), []
    for step in range(3):
        backward(model, step)
        expected.append((step, norm_of(optimizer), TAKEN))
        optimizer.step()

    check(loop.close(), *expected)
    passes = 2 if backward is retain_graph else 1
    assert [len(record.norms) for record in loop.norms.records] == [passes] * 3


def test_a_guard_before_the_backward_pass_leaves_nothing(model: nn.Sequential) -> None:
    optimizer = sgd(model)
    loop = Loop(optimizer)
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(model, step, math.inf if step == 1 else 1.0)
        if loss.isfinite():
            loss.backward()
            optimizer.step()

    assert [(r.step, r.taken) for r in loop.close()] == [(0, TAKEN), (1, TAKEN), (2, TAKEN)]


def test_a_scaler_that_nobody_gave(model: nn.Sequential) -> None:
    """The step that it skips is seen all the same."""
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    loop = Loop(optimizer)
    for step in range(5):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step, math.inf if step == 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()

    taken = [(record.step, record.taken) for record in loop.close()]
    assert taken == [(0, TAKEN), (1, TAKEN), (2, SKIPPED), (3, TAKEN), (4, TAKEN)]


def test_a_closure_called_by_hand_first(model: nn.Sequential) -> None:
    """The pass before `step` was only a look."""
    optimizer = sgd(model)
    loop = Loop(optimizer)
    for step in range(3):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            return loss

        closure()
        optimizer.step(closure)

    records = loop.close()
    assert [(r.step, r.taken, len(r.norms)) for r in records] == [(n, TAKEN, 1) for n in range(3)]


def test_two_optimizers_of_one_pass(model: nn.Sequential) -> None:
    optimizers = [sgd(model[0]), sgd(model[2])]
    loop, expected = Loop(*optimizers), []
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, step).backward()
        expected += [(step, norm_of(optimizer), TAKEN) for optimizer in optimizers]
        for optimizer in optimizers:
            optimizer.step()

    check(loop.close(), *expected)


def test_a_saliency_map_in_evaluation_mode(model: nn.Sequential) -> None:
    """A pass of a model that does not train is no step."""
    optimizer = sgd(model)
    loop = Loop(optimizer, model=model)
    for step in range(3):
        model.eval()
        optimizer.zero_grad()
        loss_of(model, 50).backward()
        model.train()
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()

    assert [(r.step, r.taken) for r in loop.close()] == [(n, TAKEN) for n in range(3)]


def test_a_step_without_a_backward_pass(model: nn.Sequential) -> None:
    optimizer = sgd(model)
    loop = Loop(optimizer)
    optimizer.step()
    loss_of(model).backward()
    optimizer.step()

    assert [(r.step, r.taken) for r in loop.close()] == [(1, TAKEN)]
    assert loop.norms.empty == 1


def test_two_steps_on_one_gradient_and_gradients_by_hand(model: nn.Sequential) -> None:
    optimizer = sgd(model)
    loop = Loop(optimizer)
    loss_of(model).backward()
    optimizer.step()
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    by_hand = norm_of(optimizer)
    optimizer.step()

    records = loop.close()
    points = [record.point for record in records]
    assert points == [Point.BACKWARD, Point.OPTIMIZER_STEP, Point.OPTIMIZER_STEP]
    assert records[0].norms == records[1].norms
    assert records[2].norms == [by_hand]


def test_a_pass_that_raised_and_was_tried_again(model: nn.Sequential) -> None:
    """The pass that died counts for nothing, the next ones are seen."""
    optimizer = sgd(model)
    loop, expected = Loop(optimizer), []
    for step in range(4):
        optimizer.zero_grad()
        if step == 1:
            handle = next(model.parameters()).register_hook(_raise)
            with pytest.raises(ZeroDivisionError):
                loss_of(model, step).backward()
            handle.remove()
            optimizer.zero_grad()
        loss_of(model, step).backward()
        expected.append((step, norm_of(optimizer), TAKEN))
        optimizer.step()

    check(loop.close(), *expected)


def test_a_step_that_raised(model: nn.Sequential) -> None:
    """The window stays open, and the next step is seen."""

    class Failing(torch.optim.SGD):
        fails = False

        def step(self, closure: Any = None) -> Any:
            if self.fails:
                msg = "no"
                raise RuntimeError(msg)
            return super().step(closure)

    optimizer = Failing(model.parameters(), lr=0.1)
    loop = Loop(optimizer)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.fails = step == 1
        if optimizer.fails:
            with pytest.raises(RuntimeError):
                optimizer.step()
        else:
            optimizer.step()

    found = [(r.step, r.taken) for r in loop.close()]
    assert found == [(0, TAKEN), (1, SKIPPED), (2, TAKEN), (3, TAKEN)]


def test_a_subclass_that_calls_the_step_of_its_parent(model: nn.Sequential) -> None:
    """Torch runs the hooks twice then; it is one step."""

    class Derived(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    sgd(model)  # from here on the parent's own step has hooks
    optimizer = Derived(model.parameters(), lr=0.1)
    loop = Loop(optimizer)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()

    assert [(r.step, r.taken) for r in loop.close()] == [(n, TAKEN) for n in range(3)]


@pytest.mark.parametrize("reentrant", [True, False])
def test_everything_in_checkpoints(model: nn.Sequential, reentrant: bool) -> None:
    """A reentrant checkpoint runs passes within the pass: one end, with complete gradients."""
    optimizer = sgd(model)
    loop, expected = Loop(optimizer), []
    for step in range(3):
        optimizer.zero_grad()
        hidden = torch.randn(3, 4, requires_grad=True)
        for layer in model:
            hidden = checkpoint(layer, hidden, use_reentrant=reentrant)
        hidden.pow(2).sum().backward()
        expected.append((step, norm_of(optimizer), TAKEN))
        optimizer.step()

    check(loop.close(), *expected)
    assert [len(record.norms) for record in loop.norms.records] == [1, 1, 1]


def test_functional_calls_and_transforms(model: nn.Sequential) -> None:
    """`func.grad` touches no `.grad`; a functional call on the model's own parameters does."""
    optimizer = sgd(model)
    loop = Loop(optimizer)
    own = dict(model.named_parameters())
    x = torch.ones(2, 4)

    def energy(parameters: Mapping[str, Tensor]) -> Tensor:
        out: Tensor = torch.func.functional_call(model, dict(parameters), (x,)).pow(2).sum()
        return out

    for _ in range(2):
        torch.func.grad(energy)({name: p.detach() for name, p in own.items()})
        optimizer.zero_grad()
        energy(own).backward()
        optimizer.step()

    assert [(r.step, len(r.norms)) for r in loop.close()] == [(0, 1), (1, 1)]


def test_passes_in_several_threads(model: nn.Sequential) -> None:
    """Passes of the same parameters in threads are all seen."""
    optimizer = sgd(model)
    loop = Loop(optimizer)
    lock = threading.Lock()

    def run(seed: int) -> None:
        loss = loss_of(model, seed)
        with lock:
            loss.backward()

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = norm_of(optimizer)
    optimizer.step()

    records = loop.close()
    assert [len(record.norms) for record in records] == [4]
    assert records[0].norms[-1] == pytest.approx(expected)


@pytest.mark.slow
def test_hooks_do_not_keep_the_model_alive() -> None:
    def make() -> tuple[weakref.ref[nn.Module], Callable[[], object]]:
        model = nn.Linear(4, 2)
        loop = Loop(sgd(model))
        loss_of(model).backward()
        return weakref.ref(model), weakref.ref(loop.windows)

    model, windows = make()
    gc.collect()

    assert model() is None
    assert windows() is None
