"""One alert while it is pending or firing; `alert_events` makes its events."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Self

import numpy as np

from gradwatch_server.core.alerting.alert import (
    MAX_NAMED_LAYERS,
    MAX_SPREAD,
    Alert,
    News,
    Spread,
    WorstValue,
    alert_id,
)
from gradwatch_server.core.alerting.alert_budget import EventRate
from gradwatch_server.core.alerting.evaluation import Context, Evaluation
from gradwatch_server.core.alerting.fitting import first_names
from gradwatch_server.core.alerting.sentences import message
from gradwatch_server.core.alerting.severities import worse
from gradwatch_server.core.alerting.silences import Silences
from gradwatch_server.core.arrays import BoolArray, FloatArray
from gradwatch_wire.health import AlertState, Severity


def with_layers(alert: Alert, layers: BoolArray, names: tuple[str, ...]) -> Alert:
    """Return the alert with the names of its layers, the origin's first.

    Args:
        names: (layers,) names; none of a rule that is about the run.
    """
    flagged = np.flatnonzero(layers) if names else np.zeros(0, dtype=np.intp)
    first = alert.origin.layer or alert.origin.first_gradient
    named = [names[i] for i in flagged[:MAX_NAMED_LAYERS]]
    if first is not None and names:
        named = [first, *(name for name in named if name != first)]
    named_layers = first_names(named, MAX_NAMED_LAYERS)
    return replace(alert, layers=named_layers, num_layers=len(flagged))


def with_ranks(alert: Alert, ranks: tuple[int, ...]) -> Alert:
    if set(ranks) <= set(alert.ranks):
        return alert
    return replace(alert, ranks=tuple(sorted({*ranks, *alert.ranks})))


def with_spread(alert: Alert, step: int) -> Alert:
    """Return the alert with how far it has come at a step, if that is farther than before."""
    known, now = alert.spread, Spread(step, alert.num_layers, len(alert.ranks))
    if known and (known[-1].num_layers, known[-1].num_ranks) == (now.num_layers, now.num_ranks):
        return alert
    return replace(alert, spread=(*known[: MAX_SPREAD - 1], now))


WORSE: Final = 10.0
"""Factor by which a value must exceed the reported one to be reported again."""

INTERVAL_NS: Final = 60_000_000_000
"""In the long run an alert tells of itself at most this often."""

BURST: Final = 3
"""Events that may follow each other at once."""


@dataclass(slots=True)
class ReportedState:
    """Facts that the events of an alert have told.

    Args:
        excess: The largest excess, as `Evaluation.excess` or the origin's value.
        loudly: Whether any event was told: of one that never was, nobody is told the end.
    """

    layers: BoolArray
    excess: float
    severity: Severity
    kind: str | None = None
    loudly: bool = False
    rate: EventRate = field(default_factory=EventRate)


@dataclass(slots=True)
class Peak:
    """Something far worse than what was told, not told yet."""

    excess: float
    worst: WorstValue


def largest_of(excess: FloatArray | None, flagged: BoolArray) -> float | None:
    """Return the largest excess of the flagged layers, None if there is none that is a number."""
    if excess is None:
        return None
    excesses = excess[flagged]
    excesses = excesses[~np.isnan(excesses)]
    return float(excesses.max()) if len(excesses) else None


@dataclass(slots=True)
class ActiveAlert:
    """An alert while it is pending or firing.

    Args:
        alert: As it stands, but for the last bad step, which `as_it_stands` puts in.
        layers: (layers,) bad in it so far, or (1,) of a rule about the run.
        bad_steps: Bad steps in a row.
        good_steps: Good steps in a row.
        held_steps: Bad steps since it began; a single good one between them is forgiven.
        absent_steps: Steps in a row without any of its layers.
        peak: What is far worse than what was told, None if nothing is.
        silences_version: Version of the silences that were looked through.
        silenced_until_ns: When the last of those ends that it fits.
        waits: Whether its next event waits, as the run has none to spare.
        is_over: Whether it would be over by now if it did not wait.
    """

    alert: Alert
    layers: BoolArray
    told: ReportedState
    last_step: int
    bad_steps: int = 1
    good_steps: int = 0
    held_steps: int = 1
    absent_steps: int = 0
    peak: Peak | None = None
    silences_version: int = -1
    silenced_until_ns: int = 0
    waits: bool = False
    is_over: bool = False

    @classmethod
    def begin(
        cls, name: str, evaluation: Evaluation, context: Context, taken: set[str], body_bytes: int
    ) -> Self:
        """Return a pending alert of what a rule raises.

        Args:
            taken: Ids that it does not get.
        """
        raised = evaluation.verdict.raised
        origin = evaluation.origin(raised)
        severity = evaluation.severity(1)
        alert = Alert(
            id=_new_id(name, evaluation, context, origin.step, taken),
            run=context.run,
            attempt=context.attempt,
            rule=name,
            group=evaluation.group,
            severity=severity,
            state=AlertState.PENDING,
            first_step=origin.step,
            fired_step=None,
            raised_step=None,
            resolved_step=None,
            last_step=evaluation.step,
            origin=origin,
            layers=(),
            num_layers=0,
            updated_ns=evaluation.received_ns,
            message="",
            ranks=origin.ranks,
            body_bytes=body_bytes,
        )
        excess = largest_of(evaluation.excess, raised)
        worth = origin.value if excess is None else excess
        told = ReportedState(np.zeros_like(raised), worth, severity, origin.kind)
        active = cls(alert, raised.copy(), told, evaluation.step)
        active._name_layers(evaluation)
        active.alert = with_spread(active.alert, evaluation.step)
        active.alert = replace(active.alert, message=message(active.alert))
        return active

    def among(self, flagged: BoolArray) -> BoolArray:
        """Return those flagged layers that were bad before; more layers may exist by now."""
        if len(flagged) == len(self.layers):
            return flagged & self.layers
        known: BoolArray = np.zeros_like(flagged)
        known[: len(self.layers)] = flagged[: len(self.layers)] & self.layers
        return known

    def extend(self, bad: BoolArray, evaluation: Evaluation) -> None:
        """Note another bad step, what joins by it, and how much it matters by now."""
        self.bad_steps, self.good_steps, self.absent_steps = self.bad_steps + 1, 0, 0
        self.held_steps += 1
        self._grow(len(bad))
        new = bad & ~self.layers
        if np.count_nonzero(new):
            self.layers = self.layers | new
            self._name_layers(evaluation)
            self.alert = with_ranks(self.alert, evaluation.origin(new).ranks)
        self.last_step = evaluation.step
        self._record_change(evaluation)
        self._record_peak(bad, evaluation)
        self.alert = with_spread(self.alert, evaluation.step)

    def _record_change(self, evaluation: Evaluation) -> None:
        severity = worse(self.alert.severity, evaluation.severity(self.bad_steps))
        origin = evaluation.extend(self.alert.origin)
        is_same = severity is self.alert.severity and origin is self.alert.origin
        if is_same and not self.is_over:  # so it is at nearly every step
            return
        num_flaps = self.alert.num_flaps + self.is_over
        is_new = origin is not self.alert.origin
        self.alert = replace(self.alert, severity=severity, origin=origin, num_flaps=num_flaps)
        if is_new:  # the message is that of the ranks and the value by now
            self.alert = with_ranks(self.alert, origin.ranks)
            self.alert = replace(self.alert, message=message(self.alert))
        self.is_over = False

    def as_it_stands(self) -> Alert:
        """Return the alert, with the last step at which it was bad."""
        if self.alert.last_step != self.last_step:
            self.alert = replace(self.alert, last_step=self.last_step)
        return self.alert

    def rest(self) -> None:
        self.bad_steps, self.good_steps, self.absent_steps = 0, self.good_steps + 1, 0

    def miss(self) -> None:
        self.absent_steps += 1

    def explain(self, cause: str, evaluation: Evaluation) -> None:
        """Note of a pending alert that it is a consequence of another one, of that id."""
        severity = evaluation.severity(self.bad_steps)
        self.alert = replace(self.alert, part_of=cause, severity=severity)

    def news(self) -> tuple[News, ...]:
        """Return what a firing alert has not told."""
        news = []
        if self.alert.severity != self.told.severity:
            news.append(News.SEVERITY)
        if self.alert.origin.kind != self.told.kind:
            news.append(News.KIND)
        if np.count_nonzero(self.layers & ~self.told.layers):
            news.append(News.LAYERS)
        if self.peak is not None:
            news.append(News.VALUE)
        return tuple(news)

    def apply_silences(self, silences: Silences, names: tuple[str, ...], now_ns: int) -> bool:
        """Note whether it is silenced; return whether a silence that kept it has ended.

        Args:
            names: (layers,) names; none of a rule that is about the run.
        """
        if self.silences_version != silences.version:
            flagged = np.flatnonzero(self.layers[: len(names)])
            self.silenced_until_ns = silences.silenced_until_ns(
                self.alert.run,
                self.alert.rule,
                [names[i] for i in flagged] if len(silences) else (),
            )
            self.silences_version = silences.version
        silenced = now_ns < self.silenced_until_ns
        ended = self.alert.silenced and not silenced
        if silenced != self.alert.silenced:
            self.alert = replace(self.alert, silenced=silenced)
        return ended

    def _name_layers(self, evaluation: Evaluation) -> None:
        self.alert = with_layers(self.alert, self.layers, evaluation.names)
        self.silences_version = -1

    def _grow(self, num_layers: int) -> None:
        missing = num_layers - len(self.layers)
        if missing <= 0:
            return
        self.layers = np.pad(self.layers, (0, missing))
        self.told.layers = np.pad(self.told.layers, (0, missing))

    def _record_peak(self, bad: BoolArray, evaluation: Evaluation) -> None:
        """Note what is far worse than what was told, and than what waits to be told."""
        least = WORSE * self.told.excess if self.peak is None else self.peak.excess
        excess = largest_of(evaluation.excess, bad)
        if excess is None:
            origin = self.alert.origin
            if origin.value >= least and origin.value > self.told.excess:
                worst = WorstValue(evaluation.step, origin.layer, origin.value, None, origin.ranks)
                self._record_worst(Peak(origin.value, worst))
        elif excess >= least and excess > (self.told.excess if self.peak is None else least):
            origin = evaluation.origin(bad & (evaluation.excess == excess))
            worst = WorstValue(
                evaluation.step, origin.layer, origin.value, origin.rank, origin.ranks
            )
            self._record_worst(Peak(excess, worst))

    def _record_worst(self, peak: Peak) -> None:
        self.peak = peak
        self.alert = with_ranks(self.alert, peak.worst.ranks)


def _new_id(name: str, evaluation: Evaluation, context: Context, step: int, taken: set[str]) -> str:
    key = evaluation.key or evaluation.group
    if context.epoch:
        key = f"{key}/epoch {context.epoch}"
    new_id = alert_id(context.run, context.attempt, name, key, step)
    again = 1
    while new_id in taken:  # the steps of a run may go back, and begin it once more
        again += 1
        new_id = alert_id(context.run, context.attempt, name, f"{key}#{again}", step)
    return new_id
