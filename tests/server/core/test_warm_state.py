"""A state restored where it knows what is usual goes on as the other one does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from gradwatch_server.core.alerting.baselines.running import MIN_SAMPLES
from gradwatch_server.core.alerting.silences import Silence
from gradwatch_server.core.entries import Acknowledged, SilenceAdded, SilenceRemoved
from gradwatch_server.core.state import State
from gradwatch_wire.health import AlertState
from tests.server.core.conftest import SECOND, START_NS
from tests.server.core.test_state_dict import restored, same, story_of, through_bytes

NAMES = ("a.weight", "a.bias", "b.weight")
STEPS = 130
PLACES = 4
"""At so many places of a story the state is saved and restored, and all of them go on."""


class WarmStory:
    """A training that is healthy until it is known what is usual, and then anything but."""

    def __init__(self, cluster: Any, seed: int) -> None:
        self.random = Random(seed)
        self.job = cluster(world=self.random.choice([1, 2]), names=NAMES, window_steps=64)
        self.job.start(job="one")
        self.size = dict.fromkeys(NAMES, 1.0)
        self.loss = 2.0
        self.step = 0
        self.faults = self._faults()

    def run(self) -> None:
        for number in range(STEPS):
            if number > MIN_SAMPLES + 4:
                next(self.faults)
            norms = [self.size[name] * self.random.uniform(0.9, 1.1) for name in NAMES]
            loss = self.loss * self.random.uniform(0.95, 1.05)
            self.job.step(self.step, norms, loss=loss)
            self.step += 1

    def _faults(self) -> Iterator[None]:
        """Yield once a step; each fault lasts some steps, and some of quiet follow."""
        kinds = ["spike", "visit", "drift", "nonfinite", "loss", "back", "again", "people", "away"]
        self.random.shuffle(kinds)
        while True:
            for kind in kinds:
                yield from getattr(self, f"_{kind}")()
                for _ in range(self.random.randint(1, 6)):
                    yield

    def _spike(self) -> Iterator[None]:
        yield from self._grown(self.random.choice(NAMES), self.random.choice([5.0, 30.0]), 4)

    def _visit(self) -> Iterator[None]:
        for _ in range(3):
            yield from self._grown("b.weight", 6.0, 2)
            yield

    def _drift(self) -> Iterator[None]:
        for _ in range(12):
            self.size["b.weight"] *= 1.15
            yield

    def _nonfinite(self) -> Iterator[None]:
        yield from self._grown("a.bias", math.nan, 1)

    def _loss(self) -> Iterator[None]:
        before, self.loss = self.loss, self.loss * self.random.choice([10.0, -1.0])
        for _ in range(4):
            yield
        self.loss = before

    def _back(self) -> Iterator[None]:
        self.step -= self.random.randint(2, 20)
        yield

    def _again(self) -> Iterator[None]:
        """The job is killed and started again from a checkpoint, its layers in another order."""
        for rank in range(self.job.world):
            self.job.lose(rank)
        self.step -= self.random.randint(0, 5)
        self.job.start(job=str(self.step))
        yield

    def _people(self) -> Iterator[None]:
        """Somebody silences a rule, knows of an alert, and lets the silence end or ends it."""
        now_ns, seconds = self.job.now_ns, self.random.choice([0.02, 3_600.0])
        rule, layers = self.random.choice(["spike", "*"]), self.random.choice(["b.*", "*"])
        until_ns = now_ns + round(seconds * SECOND)
        silence_id = f"{now_ns - START_NS:016x}"
        silence = Silence(silence_id, "gpt", rule, layers, until_ns, now_ns, "ann", "")
        self.job.put(SilenceAdded(silence))
        yield from self._grown("b.weight", 20.0, 3)
        for alert in self.job.attempt.active_alerts.alerts():
            if alert.state is AlertState.FIRING:
                self.job.put(Acknowledged("gpt", alert.attempt, alert.id, "bob", ""))
        if self.random.random() < 0.5:
            self.job.put(SilenceRemoved(silence_id))
        yield

    def _away(self) -> Iterator[None]:
        self.job.resume(after=60.0)
        self.job.gap(0, 2)
        yield

    def _grown(self, name: str, factor: float, steps: int) -> Iterator[None]:
        before, self.size[name] = self.size[name], self.size[name] * factor
        for _ in range(steps):
            yield
        self.size[name] = before


def known_to(state: State) -> list[str]:
    """Return all that is known of attempts, also what no view shows.

    Before any view is made: that drops what is too old to be counted.
    """
    return [
        repr(through_bytes(own.state_dict())) for run in state.runs.values() for own in run.attempts
    ]


@pytest.mark.slow
def test_restored_anywhere_with_what_is_usual_the_future_is_the_same(cluster: Any) -> None:
    """Open spikes and drifts, visits, steps back, new attempts, silences: each alert and view."""
    seen: set[str] = set()
    for seed in range(2):
        story = WarmStory(cluster, seed)
        story.run()
        entries = story.job.entries
        places = set(story.random.sample(range(len(entries) // 4, len(entries)), PLACES))
        live, again, others = State(window_steps=64), State(window_steps=64), []
        for number, entry in enumerate(entries):
            if number % 6 == 0:
                assert known_to(again) == known_to(live)
                again = restored(live)
            if number in places:
                others.append(restored(live))
            told = live.apply(entry)
            again.apply(entry)
            others = [other for other in others if same(other.apply(entry), told)]
        assert len(others) == PLACES
        assert all(known_to(other) == known_to(live) for other in others)
        assert all(story_of(other) == story_of(live) for other in others)
        for alert in story.job.alerts:
            seen |= {alert.rule, "silenced" if alert.silenced else "told"}
            seen |= {"acknowledged"} if alert.acknowledged else set()

    wanted = {"spike", "loss", "nonfinite", "silenced", "acknowledged", "records_lost"}
    assert seen >= wanted
