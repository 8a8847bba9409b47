"""Story of the demo: steps and alerts as they came, and whether gradwatch was right and in time."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pydantic import BaseModel, Field

from gradwatch_server.cli.demo.acts import ACTS, MOST_STEPS_LATE, Act, act_of, on_ranks

STEP: Final = re.compile(r"step +(\d+)  loss +(\S+)  norm +(\S+)")

SOON_S: Final = 0.3
"""An alert this soon after the fault is in time, however many steps a fast machine takes until
then. Six steps take longer on two ordinary cores."""


class Step(NamedTuple):
    """A line of rank 0: the step, its own loss, the gradient norm before clipping."""

    number: int
    loss: float
    norm: float
    at_s: float


class DemoOrigin(BaseModel):
    """Place where the trouble began."""

    layer: str | None
    ranks: tuple[int, ...]
    bad_loss: bool | None = None


class DemoAlert(BaseModel):
    """An event of the alert stream, and when it arrived."""

    cursor: int
    state: str
    severity: str
    rule: str
    message: str
    first_step: int
    fired_step: int
    origin: DemoOrigin
    num_layers: int = 0
    received_s: float = Field(default_factory=time.monotonic)

    @property
    def extent(self) -> str:
        """Number of its layers, in words."""
        return f"{self.num_layers} layer{'s' if self.num_layers != 1 else ''}"


def read_steps(lines: Iterable[str]) -> Iterator[Step]:
    """Yield the steps that rank 0 prints."""
    for line in lines:
        if match := STEP.match(line):
            number, loss, norm = match.groups()
            yield Step(int(number), float(loss), float(norm), time.monotonic())


@dataclass(slots=True)
class Story:
    """Steps and alerts seen so far."""

    steps: dict[int, Step] = field(default_factory=dict)
    alerts: list[DemoAlert] = field(default_factory=list)

    @property
    def last_step(self) -> int:
        """The newest step of rank 0."""
        return max(self.steps, default=-1)

    @property
    def cursor(self) -> int:
        """The newest event of the stream."""
        return self.alerts[-1].cursor if self.alerts else 0

    def fired(self, act: Act) -> list[DemoAlert]:
        """Return the alerts that began in an act, in the order in which they fired."""
        firing = [alert for alert in self.alerts if alert.state == "firing"]
        return [alert for alert in firing if act_of(alert.first_step) is act]

    def seconds_late(self, act: Act, alert: DemoAlert) -> float:
        """Return the time to an alert from the end of the step before the act."""
        before = self.steps.get(act.first - 1)
        return alert.received_s - before.at_s if before else math.nan

    def steps_late(self, act: Act, alert: DemoAlert) -> int:
        """Return the steps that training took from the fault until the alert was here."""
        taken = [step.number for step in self.steps.values() if step.at_s <= alert.received_s]
        return max([alert.fired_step, *taken]) - act.first


def find_fault(act: Act, story: Story) -> str | None:
    """Return in a sentence what gradwatch got wrong in an act, None if nothing."""
    fired = story.fired(act)
    if act.rule is None:
        return f"it raised a false alert: {fired[0].message}" if fired else None
    if not fired:
        return f"it raised no alert after the fault at step {act.first}"
    first = fired[0]
    if first.rule != act.rule:
        return f"it said {first.rule} where {act.rule} was due: {first.message}"
    if first.first_step - act.first not in act.shows_after:
        return f"it named step {first.first_step} for the fault at step {act.first}"
    if first.origin.ranks != act.ranks:
        return f"it named {on_ranks(first.origin.ranks)} for the fault on {on_ranks(act.ranks)}"
    if len(fired) > 1 and act is not ACTS[-1]:  # what explodes may go wrong in more than one way
        return f"it raised a false alert: {fired[1].message}"
    late = story.steps_late(act, first)
    soon = story.seconds_late(act, first) <= SOON_S
    if first.fired_step - act.first > MOST_STEPS_LATE or (late > MOST_STEPS_LATE and not soon):
        return f"it was {late} steps late, at most {MOST_STEPS_LATE} are allowed"
    return None
