"""From a case to what happened: the training, what gradwatch said of it, what its loss showed."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch

from benchmarks.alerts.families import FAMILIES
from benchmarks.alerts.finding import Finding
from benchmarks.alerts.judge import Judge, Passing
from benchmarks.alerts.make import record
from benchmarks.alerts.recorded import FaultLabel, Recorded
from benchmarks.alerts.replay import entries
from benchmarks.alerts.store import Collection
from gradwatch_server.core.entries import Entry
from incidents.cases import Case

FIRST: Final = 0.55
"""Share of the steps before which no fault begins: there has to be something that is usual."""

LOSS_STEPS: Final = 64
LOSS_DEVIATIONS: Final = 6.0


@dataclass(frozen=True, slots=True)
class Incident:
    """A training that went wrong.

    Args:
        case: Which one.
        recorded: Its numbers, under the case's name.
        findings: What gradwatch said from then on, in the order in which it was told.
        num_before: Alerts in the steps before.
    """

    case: Case
    recorded: Recorded
    findings: tuple[Finding, ...]
    num_before: int

    @property
    def fault(self) -> FaultLabel:
        """Fault that was put in, and its place."""
        if self.recorded.fault is None:
            msg = f"{self.case.name}: the recording is of a healthy run"
            raise ValueError(msg)
        return self.recorded.fault

    @property
    def step(self) -> int:
        """The first step that the fault is in."""
        return self.recorded.forked_at

    def woke(self) -> Finding | None:
        """Return the first alert that is meant to wake somebody, None if there was none."""
        return next((each for each in self.findings if each.is_warning), None)

    def loss_step(self) -> int | None:
        """Return the first step at which the loss stands out, as somebody sees it in its curve.

        NaN, or more than six deviations above the mean of the 64 steps before the fault; None if
        there is none.
        """
        loss = self.recorded.rows.loss.mean(1)
        before = loss[self.step - LOSS_STEPS : self.step]
        limit = before.mean() + LOSS_DEVIATIONS * before.std()
        found = np.flatnonzero(~(loss[self.step :] <= limit))
        return self.step + int(found[0]) if len(found) else None

    def log(self) -> Iterator[Entry]:
        """Yield what the log of an aggregator has of it, with the passing of time."""
        passing = Passing()
        for entry in entries(self.recorded):
            yield from passing.before(entry)
            passing.follow(entry)
            yield entry


def happen(case: Case) -> Incident:
    """Train, break it and judge it; that takes some seconds."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        training = FAMILIES[case.recipe.family](case.recipe)
        made = record(training, Path(folder), [case.fault], first=FIRST, size=case.size)
        if made.refused:
            msg = f"{case.name}: {made.refused[0]}"
            raise ValueError(msg)
        recorded = Collection(Path(folder)).read(f"{made.name}+{case.fault}")
    recorded = dataclasses.replace(recorded, name=case.name, parent=None)
    judge = Judge()
    judge.add(entries(recorded))
    after = [each for each in judge.findings if each.step >= recorded.forked_at]
    return Incident(
        case=case,
        recorded=recorded,
        findings=tuple(sorted(after, key=lambda each: each.step)),
        num_before=len(judge.findings) - len(after),
    )
