"""`attach(overhead=...)`: steps that are only counted, a sentinel, and what is told of both."""

from __future__ import annotations

import gc
import logging
import math
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import _init_optim_state

import gradwatch
from gradwatch._recording.overhead import MOST_STEPS, Overhead, Pace
from gradwatch._recording.schedule import SETTLING_STEPS
from gradwatch_wire import Event
from tests.support.recording import Sink
from tests.support.waiting import wait_until

EVERY = 64
RESTING = Pace(EVERY, rests=True)
PROBING = Pace(EVERY, rests=True, probes=True)
STEPS = 1_000

SetPace = Callable[[Pace], None]


@pytest.fixture
def set_pace(monkeypatch: pytest.MonkeyPatch) -> SetPace:
    """Decide for the budget, which else depends on what steps take on this machine."""
    # Other tests may have compiled something.
    monkeypatch.setattr("gradwatch._hooks.order.has_compiled", lambda: False)
    monkeypatch.delenv("GRADWATCH_OVERHEAD", raising=False)

    def decide(pace: Pace) -> None:
        def set_it(budget: Overhead, _now_s: float, *, may_rest: bool) -> None:
            budget.pace = pace if may_rest or not pace.rests else Pace(4)

        monkeypatch.setattr(Overhead, "decide", set_it)

    return decide


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def backward(model: nn.Module, seed: int = 0) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
    model(x).square().mean().backward()


def norm_of(model: nn.Module) -> float:
    norms = [p.grad.double().norm() for p in model.parameters() if p.grad is not None]
    return float(torch.stack(norms).norm())


class Nested(torch.optim.SGD):
    """An optimizer whose `step` calls that of its parent, which runs the hooks as well."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Loop:
    """A training loop that notes the norm of each step; by its kind it does what people do."""

    def __init__(self, kind: str, model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        self.kind, self.model, self.optimizer = kind, model, optimizer
        self.norms: list[float] = []
        self._random = random.Random(3)

    def run(self, number: int) -> None:
        """Train what the loop calls a step."""
        if self.kind == "state made by a checkpoint" and number % 50 == 20:
            self.optimizer.zero_grad()
            _init_optim_state(self.optimizer)
        self.optimizer.zero_grad(set_to_none=self.kind != "zeroed in place")
        for part in range(self._random.choice([1, 2, 3]) if self.kind == "accumulated" else 1):
            if self.kind != "closure":
                backward(self.model, 10 * number + part)
        if self.kind != "closure":
            self.norms.append(norm_of(self.model))
        if self.kind == "guarded" and self._random.random() < 0.05:
            return
        if self.kind == "looked at in evaluation mode" and number % 50 == 7:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.model.eval()
            backward(self.model)
            self.model.train()
            return
        if self.kind == "replaced" and number == STEPS // 2:
            self.optimizer.step()
            self.model[2] = nn.Linear(8, 1)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
            return
        if self.kind == "looking ahead later" and number > STEPS // 2 + 10:
            self._look_ahead(number)
        if self.kind == "clipped":
            nn.utils.clip_grad_norm_(self.model.parameters(), 1e-3)
        self.optimizer.step(self._evaluate if self.kind == "closure" else None)

    def _look_ahead(self, number: int) -> None:
        for by in (0.01, -0.01):
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.add_(by)
            if by > 0.0:
                self.optimizer.zero_grad()
                backward(self.model, 10 * number)
                self.norms[-1] = norm_of(self.model)

    def _evaluate(self) -> float:
        backward(self.model, len(self.norms))
        self.norms.append(norm_of(self.model))
        return 0.0


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        *(("plain", 80), ("accumulated", 80), ("guarded", 80), ("closure", 80), ("clipped", 80)),
        *(("looked at in evaluation mode", 80), ("replaced", 100), ("zeroed in place", 300)),
        *(("looking ahead later", 100), ("nested", 80), ("state made by a checkpoint", 80)),
    ],
)
@pytest.mark.parametrize("pace", [RESTING, PROBING])
def test_steps_that_are_only_counted_have_the_right_numbers(
    aggregator: Sink, set_pace: SetPace, kind: str, most: int, pace: Pace
) -> None:
    set_pace(pace)
    model = make()
    torch.optim.SGD(make().parameters())  # from now on its `step` runs hooks, within another, too
    optimizer = (Nested if kind == "nested" else torch.optim.SGD)(model.parameters(), lr=1e-3)
    watch = aggregator.attach(model, optimizer, overhead=0.01)
    loop = Loop(kind, model, optimizer)
    for number in range(STEPS):
        loop.run(number)
    watch.close()
    sent = [(stats.step, total(aggregator, stats)) for stats in aggregator.of_stats()]
    assert SETTLING_STEPS < len(sent) < most
    assert [norm for _, norm in sent] == pytest.approx(
        [loop.norms[step] for step, _ in sent], rel=1e-5
    )
    if kind not in {"zeroed in place", "guarded"}:  # there the step that is due may be skipped
        due = {*range(0, STEPS, EVERY), *range(1, STEPS, EVERY)}
        assert due.issuperset(step for step, _ in sent if step >= SETTLING_STEPS)
    assert watch.stats()["faults"] == 0


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize(("parts", "spoilt"), [(1, 0), (2, 0), (2, 1)])
def test_a_step_that_is_only_counted_is_measured_if_one_gradient_is_not_finite(
    aggregator: Sink, set_pace: SetPace, is_guarded: bool, parts: int, spoilt: int
) -> None:
    """Of several such steps in a row the first three, and what a waking measures besides."""
    set_pace(PROBING)
    # Without a guard all is NaN from the first such step on.
    model, bad = make(), [40, 90, *range(100, 110), 140] if is_guarded else [150]
    watch, optimizer = aggregator.attach_sgd(model, 0.0, overhead=0.01)
    norms: dict[int, float] = {}
    for step in range(200):
        optimizer.zero_grad()
        for part in range(parts):
            x = torch.ones(3, 4) * (math.nan if step in bad and part == spoilt else 1.0 + step)
            model(x).square().mean().backward()
        norms[step] = norm_of(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        if not (is_guarded and step in bad):
            optimizer.step()
    watch.close()
    found = {stats.step: stats for stats in aggregator.of_stats()}
    measured = [step for step in found if step in bad]
    assert {*measured}.issuperset([40, 90, 100, 101, 140] if is_guarded else [150])
    assert len([step for step in measured if 100 <= step < 110]) <= 6
    later = [step for step in found if step >= SETTLING_STEPS and step % EVERY not in {0, 1}]
    assert len(later) < 16
    for step, stats in found.items():
        assert total(aggregator, stats) == pytest.approx(norms[step], rel=1e-5, nan_ok=True)
        assert stats.labels["point"] == "backward"
        assert stats.labels["taken"] is not (is_guarded and step in bad)
    assert watch.stats()["faults"] == 0


def test_no_gradient_is_looked_at_in_passes_that_a_closure_runs(
    aggregator: Sink, set_pace: SetPace
) -> None:
    """The step under way has been seen to begin by nobody, and cannot be taken up in its middle."""
    set_pace(PROBING)
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 0.0, overhead=0.01)

    value = 1.0

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(torch.full((3, 4), value)).square().mean()
        loss.backward()
        return loss

    for step in range(200):
        value = math.nan if step >= 70 else 1.0
        optimizer.step(evaluate)
    watch.close()
    later = [stats.step for stats in aggregator.of_stats()][SETTLING_STEPS:]
    assert all(step % EVERY in {0, 1} for step in later), later


def total(aggregator: Sink, stats: Any) -> float:
    return math.hypot(*aggregator.layers(stats).values())


def test_a_step_number_that_is_given_is_that_of_a_step_that_is_only_counted(
    aggregator: Sink, set_pace: SetPace
) -> None:
    set_pace(RESTING)
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 1e-3, overhead=0.01)
    for step in range(1_000, 1_000 + STEPS):
        optimizer.zero_grad()
        backward(model, step)
        watch.collect(step=step, loss=1.0)
        optimizer.step()
    watch.close()
    later = [stats.step for stats in aggregator.of_stats()][SETTLING_STEPS:]
    assert later
    assert all(step % EVERY in (0, 1) for step in later)


def test_while_steps_are_only_counted_one_hook_is_left_and_none_after_close(
    aggregator: Sink, set_pace: SetPace
) -> None:
    set_pace(RESTING)
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 1e-3, overhead=0.01)
    counts = [hooks_on(model)]
    for step in range(SETTLING_STEPS + 4):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        counts.append(hooks_on(model))
    watch.close()
    assert counts[0] == 6
    assert counts[-1] == 1
    assert hooks_on(model) == 0


def hooks_on(model: nn.Module) -> int:
    found = 0
    for parameter in model.parameters():
        found += len(parameter._backward_hooks or ())
        found += len(getattr(parameter, "_post_accumulate_grad_hooks", None) or ())
    return found


@pytest.mark.parametrize("pace", [RESTING, PROBING])
def test_a_model_is_freed_while_its_steps_are_only_counted(
    aggregator: Sink, set_pace: SetPace, pace: Pace
) -> None:
    set_pace(pace)

    def train() -> weakref.ref[nn.Module]:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        watch = gradwatch.attach(
            model, optimizer, run="test", endpoint=aggregator.endpoint, overhead=0.01
        )
        for step in range(SETTLING_STEPS + 4):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
        watch.close()
        return weakref.ref(model)

    known = train()
    gc.collect()
    assert known() is None


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("factor", [math.nan, math.inf, 1e3])
def test_the_sentinel_has_the_very_step_measured(
    aggregator: Sink, set_pace: SetPace, slices: int, factor: float
) -> None:
    set_pace(Pace(EVERY, slices))
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 0.0, overhead=0.01)
    bad = {100: "0.weight", 151: "2.bias"}
    usual: dict[str, float] = {}
    for step in range(200):
        optimizer.zero_grad()
        handle = hook(model, bad[step], factor) if step in bad else None
        backward(model)
        usual = usual or norms_of(model)
        if handle is not None:
            handle.remove()
        optimizer.zero_grad()  # the weights stay as they are
        optimizer.step()
    watch.close()
    found = {stats.step: aggregator.layers(stats) for stats in aggregator.of_stats()}
    odd = [step for step in found if step >= SETTLING_STEPS and step % EVERY]
    places = [name for name, _ in model.named_parameters()]
    seen = [step for step in bad if places.index(bad[step]) % slices == step % slices]
    assert odd == seen
    assert seen
    for step in seen:
        others = {name: norm for name, norm in found[step].items() if name != bad[step]}
        assert others == {name: pytest.approx(usual[name], rel=1e-5) for name in others}
        norm = found[step][bad[step]]
        assert norm == pytest.approx(usual[bad[step]] * factor, rel=1e-5, nan_ok=True)


def hook(model: nn.Module, name: str, factor: float) -> Any:
    def change(gradient: Tensor) -> Tensor:
        return gradient * factor

    return model.get_parameter(name).register_hook(change)


def norms_of(model: nn.Module) -> dict[str, float]:
    return {
        name: float(parameter.grad.norm())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def test_a_sentinel_that_alarms_at_each_step_has_three_of_them_measured(
    aggregator: Sink, set_pace: SetPace
) -> None:
    set_pace(Pace(EVERY, 1))
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 0.0, overhead=0.01)
    for step in range(128):
        optimizer.zero_grad()
        backward(model)
        if step >= 70:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.register_hook(lambda gradient: gradient * math.nan)
        optimizer.step()
    watch.close()
    steps = [stats.step for stats in aggregator.of_stats()][SETTLING_STEPS:]
    assert steps == [64, 71, 72, 73]


def test_the_pace_is_told(
    aggregator: Sink, set_pace: SetPace, caplog: pytest.LogCaptureFixture
) -> None:
    set_pace(RESTING)
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 0.0, overhead=0.01)
    assert watch.stats()["pace"] == "each step in full"
    with caplog.at_level(logging.INFO, "gradwatch"):
        for _ in range(SETTLING_STEPS + 1):
            optimizer.zero_grad()
            backward(model)
            optimizer.step()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        "gradwatch: from step 32 on: every 64th step in full, the others counted: about "
    )
    assert str(watch.stats()["pace"]).startswith("every 64th step in full, the others counted")
    watch.close()
    (event,) = aggregator.of(Event)
    assert (event.name, event.step, event.data) == ("pace", SETTLING_STEPS, {"every": EVERY})
    assert line.endswith(event.text)


@pytest.mark.parametrize(
    ("variable", "given", "expected"),
    [
        ("none", {"overhead": 0.01}, 1),
        ("0.01", {}, EVERY),
        ("0.01", {"every": 3}, 3),
        (None, {"overhead": 0.01}, EVERY),
        (None, {"overhead": 0.01, "report_every": 2}, 1),
        (None, {"overhead": 0.01, "every": 1}, 1),
        (None, {}, EVERY),
        (None, {"overhead": None}, 1),
    ],
)
def test_what_is_given_decides(
    aggregator: Sink,
    set_pace: SetPace,
    monkeypatch: pytest.MonkeyPatch,
    variable: str | None,
    given: dict[str, Any],
    expected: int,
) -> None:
    set_pace(RESTING)
    if variable is not None:
        monkeypatch.setenv("GRADWATCH_OVERHEAD", variable)
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 0.0, **given)
    for step in range(200):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    collected = watch.stats()["collected"]
    due = set(range(0, 200, expected))
    if expected == EVERY:
        due |= {*range(SETTLING_STEPS), *range(1, 200, EVERY)}
    assert collected == len(due)


@pytest.mark.parametrize("text", ["1 %", "0", "2", "-0.1", "nan"])
def test_a_wrong_variable_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("GRADWATCH_OVERHEAD", text)
    with pytest.raises(ValueError, match=r"^GRADWATCH_OVERHEAD: "):
        gradwatch.attach(make())


@pytest.mark.parametrize(("agreed", "own"), [(1, 8), (4, 8), (32, 8), (32, 1), (1 << 50, 8)])
def test_a_rank_measures_what_all_ranks_measure(
    aggregator: Sink, set_pace: SetPace, rank_0_of_2: None, agreed: int, own: int
) -> None:
    set_pace(Pace(own, 1))
    aggregator.every = agreed
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 0.0, overhead=0.01)
    for step in range(SETTLING_STEPS + (96 if agreed <= MOST_STEPS else MOST_STEPS)):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
        if step == 0:
            wait_until(lambda: watch.stats()["acked"] == 2, "an answer")
    watch.close()
    steps = [stats.step for stats in aggregator.of_stats()]
    assert steps[SETTLING_STEPS:] == (
        list(range(32, 128, max(agreed, own))) if agreed <= MOST_STEPS else [MOST_STEPS]
    )
    events = aggregator.of(Event)
    assert [event.data for event in events] == [{"every": own}] * (max(agreed, own) > 1)


def test_steps_that_take_long_are_measured_before_the_next_one_is_due(
    aggregator: Sink, set_pace: SetPace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwatch._hooks.optimizer_steps.MOST_S", 0.0)
    set_pace(Pace(1_024, rests=True))
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 0.0, overhead=0.01)
    for _ in range(500):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    watch.close()
    steps = [stats.step for stats in aggregator.of_stats()][SETTLING_STEPS:]
    assert steps[:4] == [35, 36, 39, 40]


@pytest.mark.parametrize(
    ("pace", "expected"),
    [
        (Pace(1), {3: 2, 40: 39, 41: 39, 42: 39, 43: 39, 44: 43, 64: 63}),
        (Pace(EVERY, 1), {3: 2, 40: 39, 41: 39, 42: 39, 64: 63, 128: 127}),
        (Pace(EVERY, 2), {3: 2, 40: 31, 41: 31, 42: 31, 64: 31, 128: 64}),
        (RESTING, {3: 2, 64: 31, 65: 64, 128: 65}),
    ],
)
def test_each_record_has_the_last_step_before_that_was_good(
    aggregator: Sink, set_pace: SetPace, pace: Pace, expected: dict[int, int]
) -> None:
    set_pace(pace)
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 0.0, overhead=0.01)
    for step in range(130):
        optimizer.zero_grad()
        is_bad = not pace.rests and step in {40, 41, 42}
        handles = [hook(model, name, math.nan) for name in ("0.weight", "0.bias") if is_bad]
        backward(model)
        for handle in handles:
            handle.remove()
        optimizer.zero_grad()
        optimizer.step()
    watch.close()
    found = {stats.step: stats.last_good_step for stats in aggregator.of_stats()}
    assert {step: found[step] for step in expected} == expected
    assert found[0] == -1


@pytest.mark.parametrize("is_new", [False, True])
def test_the_sentinel_looks_at_a_layer_that_has_taken_the_place_of_another(
    aggregator: Sink, set_pace: SetPace, is_new: bool
) -> None:
    set_pace(Pace(EVERY, 1))
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 0.0, overhead=0.01)
    for step in range(60):
        if is_new and step == 40:
            model[2] = nn.Linear(8, 1)
            optimizer.param_groups[0]["params"][2:] = list(model[2].parameters())
        optimizer.zero_grad()
        handle = hook(model, "2.weight", math.nan) if step == 50 else None
        backward(model)
        if handle is not None:
            handle.remove()
        optimizer.zero_grad()
        optimizer.step()
    watch.close()
    sent = aggregator.of_stats()[SETTLING_STEPS:]
    assert [(stats.step, stats.last_good_step) for stats in sent] == [(50, 49)]
    assert math.isnan(aggregator.layers(sent[0])["2.weight"])


def test_steps_whose_gradients_no_pass_has_left_are_followed(
    aggregator: Sink, set_pace: SetPace
) -> None:
    set_pace(RESTING)
    model = make()
    watch, optimizer = aggregator.attach_sgd(model, 0.0, overhead=0.01)
    for _ in range(200):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        watch.collect(loss=1.0)
        optimizer.step()
    watch.close()
    assert len(aggregator.of_stats()) < SETTLING_STEPS + 60
