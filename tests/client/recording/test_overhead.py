"""The pace of a watch on trainings whose steps and costs are made up: the clock is injected."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from gradwatch._recording.overhead import MOST_S, MOST_STEPS, Overhead, Pace
from gradwatch._recording.schedule import SETTLING_STEPS, Rest, Schedule

Noise = Callable[[random.Random, int], float]
"""Factor by which a step, or a piece of work of the watch, takes longer."""


def quiet(_rng: random.Random, _step: int) -> float:
    return 1.0


def noisy(rng: random.Random, _step: int) -> float:
    return rng.lognormvariate(0.0, 0.2)


def contended(rng: random.Random, _step: int) -> float:
    """Take the core away for a while, again and again."""
    return rng.uniform(1.0, 1.3) * (5.0 if rng.random() < 0.25 else 1.0)


def paused(rng: random.Random, step: int) -> float:
    """Validate every hundredth step, and save a checkpoint every thousandth."""
    return noisy(rng, step) + 50.0 * (step % 100 == 99) + 2_000.0 * (step % 1_000 == 999)


@dataclass
class Training:
    """A training loop that takes time on an injected clock, and the schedule of its watch."""

    step_s: float
    full_s: float = 350e-6
    follow_s: float = 40e-6
    look_s: float | None = 30e-6
    share: float = 0.01
    can_rest: bool = True
    noise: Noise = quiet
    breaks_rests: bool = False
    hidden_s: float = 0.0
    """Cost of a full measurement besides, where the watch cannot time itself."""
    record_s: float = 0.0
    """Cost of its record in the sender's thread."""

    now_s: float = 100.0
    step: int = 0
    own_s: float = 0.0
    paces: list[Pace] = field(default_factory=list)
    full: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(7)
        self.schedule = Schedule(
            1,
            Overhead(self.share),
            can_rest=self.can_rest,
            record_s=lambda: self.record_s,
            clock=lambda: self.now_s,
        )
        self._rest: Rest | None = None

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._take(self.step_s)
            if self._rest is None:
                self._watched_step()
            else:
                self._counted_step(self._rest)
            self.step += 1
            if not self.paces or self.paces[-1] != self.schedule.pace:
                self.paces.append(self.schedule.pace)

    def _take(self, seconds: float) -> None:
        self.now_s += seconds * self.noise(self._rng, self.step)

    def _spend(self, seconds: float) -> None:
        before_s = self.now_s
        self._take(seconds)
        self.own_s += self.now_s - before_s

    def _look(self) -> None:
        if self.look_s is not None:
            before_s = self.now_s
            slices = self.schedule.pace.slices or 1
            self._spend(self.look_s / slices)
            self.schedule.add_look(self.now_s - before_s, is_whole=slices == 1)

    def _watched_step(self) -> None:
        is_due = self.schedule.is_due(self.step)
        if is_due and self.hidden_s:
            self._spend(self.hidden_s)
        self.schedule.enter()
        if is_due:
            self.full.append(self.step)
        if self.schedule.is_settling or (not is_due and self.schedule.slice_of(self.step)):
            self._look()
        self._spend(self.full_s if is_due else self.follow_s)
        self._rest = self.schedule.end_step(self.step + 1, was_due=is_due, may_rest=True)
        self.schedule.leave()

    def _counted_step(self, rest: Rest) -> None:
        rest.num_steps += 1
        self._spend(2e-6)
        rest.end_step(None)
        rest.is_broken = self.breaks_rests
        if rest.step >= rest.until or rest.is_broken:
            rest.wake_s = 100e-6
            self._spend(rest.wake_s)
            self.schedule.wake(rest)
            self._rest = None


@pytest.mark.parametrize("noise", [quiet, noisy, contended, paused])
@pytest.mark.parametrize("step_s", [250e-6, 2e-3, 30e-3, 400e-3])
@pytest.mark.parametrize("can_rest", [True, False])
def test_the_pace_of_a_steady_training_does_not_swing(
    noise: Noise, step_s: float, can_rest: bool
) -> None:
    training = Training(step_s, noise=noise, can_rest=can_rest)
    training.run(3_000)
    training.paces = training.paces[-1:]
    training.run(5_000)
    assert len(training.paces) - 1 <= 5, training.paces


@pytest.mark.parametrize("noise", [quiet, noisy, paused])
@pytest.mark.parametrize("step_s", [1e-3, 2e-3, 5e-3, 30e-3, 400e-3])
def test_measuring_stays_within_the_share(noise: Noise, step_s: float) -> None:
    training = Training(step_s, noise=noise)
    training.run(4_000)
    training.own_s, before_s = 0.0, training.now_s
    training.run(8_192)
    assert training.own_s <= 0.013 * (training.now_s - before_s - training.own_s)


def test_what_the_watch_cannot_time_is_learnt_from_the_steps_between() -> None:
    training = Training(20e-3, full_s=400e-6, hidden_s=700e-6, look_s=None)
    training.run(4_000)
    training.own_s, before_s = 0.0, training.now_s
    training.run(8_192)
    assert training.own_s <= 0.011 * (training.now_s - before_s - training.own_s)
    blind = Training(20e-3, full_s=400e-6, look_s=None)
    blind.run(12_000)
    assert training.schedule.pace.every > blind.schedule.pace.every


@pytest.mark.parametrize(("step_s", "probes"), [(250e-6, False), (3e-3, True)])
def test_a_gradient_of_each_step_is_looked_at_where_that_fits(step_s: float, probes: bool) -> None:
    training = Training(step_s)
    training.run(4_096)
    pace = training.schedule.pace
    assert (pace.rests, pace.probes) == (True, probes)
    assert ("one gradient checked" in training.schedule.describe()) == probes


@pytest.mark.parametrize("step_s", [2e-3, 30e-3])
def test_what_a_record_takes_in_the_senders_thread_is_in_the_share(step_s: float) -> None:
    training, other = Training(step_s, record_s=2e-3), Training(step_s)
    for each in (training, other):
        each.run(4_096)
        each.own_s, each.full, before_s = 0.0, [], each.now_s
        each.run(8_192)
        spent_s = each.own_s + len(each.full) * each.record_s
        assert spent_s <= 0.013 * (each.now_s - before_s - each.own_s)
    assert training.schedule.pace.every > other.schedule.pace.every


def test_steps_that_are_longer_for_a_while_change_nothing() -> None:
    training = Training(2e-3)
    training.run(8_000)
    pace = training.schedule.pace
    training.paces.clear()
    training.step_s = 8e-3
    training.run(8 * pace.every)
    training.step_s = 2e-3
    training.run(8 * pace.every)
    assert training.paces == [pace]


def test_short_steps_are_measured_as_rarely_as_is_allowed_and_no_rarer() -> None:
    training = Training(100e-6)
    training.run(20_000)
    assert training.schedule.pace == Pace(MOST_STEPS, rests=True)


def test_long_steps_are_measured_in_full_each() -> None:
    training = Training(1.0)
    training.run(200)
    assert training.paces == [Pace()]
    assert training.full == list(range(200))


def test_steps_between_are_looked_at_where_that_can_be_afforded() -> None:
    training = Training(30e-3, full_s=1.5e-3, look_s=600e-6)
    training.run(2_000)
    pace = training.schedule.pace
    assert pace.slices > 1
    assert not pace.rests
    assert pace.every < MOST_STEPS


def test_a_sentinel_that_has_to_look_does_so_whatever_it_costs() -> None:
    schedule = Schedule(1, budget := Overhead(0.01, looks_always=True), clock=lambda: 0.0)
    for _ in range(SETTLING_STEPS):
        budget.add_full(1e-3, 300e-6)
        budget.add_look(500e-6)
    budget.decide(1.0, may_rest=False)
    assert budget.pace == Pace(MOST_STEPS, slices=1)
    assert schedule.wanted == MOST_STEPS


def test_nothing_is_rarer_than_half_a_minute() -> None:
    training = Training(200e-3, full_s=8.0, follow_s=1e-6, look_s=None, share=0.0001)
    training.run(3_000)
    assert training.schedule.pace.every * 200e-3 <= MOST_S


def test_the_first_steps_are_measured_whatever_the_budget() -> None:
    training = Training(100e-6, share=1e-6)
    training.run(SETTLING_STEPS + 100)
    assert training.full[:SETTLING_STEPS] == list(range(SETTLING_STEPS))
    assert len(training.full) < SETTLING_STEPS + 5


def test_a_waking_measures_two_steps_in_a_row() -> None:
    training = Training(250e-6)
    training.run(10_000)
    woken = [step for step in training.full if step >= 5_000]
    assert woken[::2] == [step for step in woken if step % training.schedule.pace.every == 0]
    assert [step - 1 for step in woken[1::2]] == woken[::2][: len(woken[1::2])]


def test_steps_that_become_longer_are_measured_more_often() -> None:
    training = Training(250e-6)
    training.run(10_000)
    rare = training.schedule.pace.every
    training.step_s = 20e-3
    training.run(10_000)
    assert training.schedule.pace.every < rare


def test_steps_that_become_shorter_are_measured_more_rarely() -> None:
    training = Training(100e-3)
    training.run(1_000)
    often = training.schedule.pace
    training.step_s = 500e-6
    training.run(20_000)
    assert training.schedule.pace.every > often.every


def test_a_rest_that_is_broken_three_times_in_a_row_is_the_last() -> None:
    training = Training(250e-6)
    training.run(1_000)
    assert training.schedule.pace.rests
    training.breaks_rests = True
    training.run(3_000)
    assert not training.schedule.pace.rests


def test_a_given_number_of_steps_is_kept() -> None:
    schedule = Schedule(3)
    assert [step for step in range(10) if schedule.is_due(step)] == [0, 3, 6, 9]


@pytest.mark.parametrize(("every", "text"), [(2, "2nd"), (3, "3rd"), (12, "12th"), (32, "32nd")])
def test_the_number_of_steps_is_told_as_people_write_it(every: int, text: str) -> None:
    assert Schedule(every).describe() == f"every {text} step in full"
