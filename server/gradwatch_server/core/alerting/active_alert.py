"""One alert while it is pending or firing: what it has seen, and what it has told of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

import numpy as np

from gradwatch_server.core.alerting.alert import (
    MAX_NAMED_LAYERS,
    MAX_SPREAD,
    Alert,
    News,
    Part,
    ResolvedBy,
    Spread,
    Update,
    Worst,
    alert_id,
)
from gradwatch_server.core.alerting.evaluation import Context, Evaluation
from gradwatch_server.core.alerting.event_limit import EventLimit
from gradwatch_server.core.alerting.messages import message
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import Rule
from gradwatch_server.core.alerting.silences import Silences
from gradwatch_server.core.arrays import BoolArray, FloatArray
from gradwatch_server.core.packing import pack, unpack_flags, unpack_numbers
from gradwatch_wire.health import AlertState, Severity

WORSE: Final = 10.0
"""What is this many times what was told before is told again."""


@dataclass(slots=True)
class Told:
    """What the events of an alert have told.

    Args:
        layers: (layers,) which.
        excess: The largest excess, as `Evaluation.excess` or the origin's value.
        severity: How much it matters.
        loudly: Whether any event was told: of one that never was, nobody is told the end.
        limit: How often it may be told.
    """

    layers: BoolArray
    excess: float
    severity: Severity
    loudly: bool = False
    limit: EventLimit = field(default_factory=EventLimit)

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `from_state_dict`."""
        return {
            "layers": pack(self.layers),
            "excess": self.excess,
            "severity": self.severity,
            "loudly": self.loudly,
            "ahead_ns": self.limit.ahead_ns,
        }

    @classmethod
    def from_state_dict(cls, plain: dict[str, Any]) -> Self:
        """Return what `state_dict` described."""
        return cls(
            layers=unpack_flags(plain["layers"]),
            excess=plain["excess"],
            severity=Severity(plain["severity"]),
            loudly=plain["loudly"],
            limit=EventLimit(plain["ahead_ns"]),
        )


@dataclass(slots=True)
class Peak:
    """Something far worse than what was told, not told yet.

    Args:
        excess: How far it is.
        worst: Where it is.
    """

    excess: float
    worst: Worst


@dataclass(slots=True)
class ActiveAlert:
    """An alert while it is pending or firing.

    Args:
        alert: As it stands.
        layers: (layers,) bad in it so far, or (1,) of a rule about the run.
        told: What its events have told.
        bad_steps: Bad steps in a row.
        good_steps: Good steps in a row.
        held_steps: Bad steps since it began; a single good one between them is forgiven.
        absent_steps: Steps in a row without any of its layers.
        reference: (layers,) the reference of each layer when it joined; None without any.
        peak: What is far worse than what was told, None if nothing is.
        silences_version: Version of the silences that were looked through.
        silenced_until_ns: When the last of those ends that it fits.
    """

    alert: Alert
    layers: BoolArray
    told: Told
    bad_steps: int = 1
    good_steps: int = 0
    held_steps: int = 1
    absent_steps: int = 0
    reference: FloatArray | None = None
    peak: Peak | None = None
    silences_version: int = -1
    silenced_until_ns: int = 0

    @classmethod
    def begin(
        cls, name: str, rule: Rule, evaluation: Evaluation, context: Context, taken: set[str]
    ) -> Self:
        """Return a pending alert of what a rule raises; ids that are *taken* it does not get."""
        raised = evaluation.verdict.raised
        origin = evaluation.origin(raised)
        key = evaluation.key or evaluation.group
        if context.epoch:
            key = f"{key}/epoch {context.epoch}"
        own_id = alert_id(context.run, context.attempt, name, key, origin.step)
        again = 1
        while own_id in taken:  # the steps of a run may go back, and begin it once more
            again += 1
            own_id = alert_id(context.run, context.attempt, name, f"{key}#{again}", origin.step)
        severity = evaluation.severity(1)
        alert = Alert(
            id=own_id,
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
            copy=rule.copied,
        )
        excess = _largest(evaluation.excess, raised)
        told = Told(np.zeros_like(raised), origin.value if excess is None else excess, severity)
        own = cls(alert, raised.copy(), told)
        own._name_layers(evaluation)
        own._freeze(raised, evaluation)
        own._note_spread(evaluation.step)
        own.alert = replace(own.alert, message=message(own.alert, rule.describe(origin)))
        return own

    def among(self, flagged: BoolArray) -> BoolArray:
        """Return those flagged layers that were bad before; more layers may exist by now."""
        known: BoolArray = np.zeros_like(flagged)
        known[: len(self.layers)] = flagged[: len(self.layers)] & self.layers
        return known

    def extend(self, bad: BoolArray, evaluation: Evaluation) -> None:
        """Note another bad step, what joins by it, and how much it matters by now."""
        self.bad_steps, self.good_steps, self.absent_steps = self.bad_steps + 1, 0, 0
        self.held_steps += 1
        self._grow(len(bad))
        new = bad & ~self.layers
        if new.any():
            self.layers = self.layers | new
            self._name_layers(evaluation)
            self._add_ranks(evaluation.origin(new).ranks)
            self._freeze(new, evaluation)
        origin = evaluation.extend(self.alert.origin)
        self.alert = replace(
            self.alert,
            last_step=evaluation.step,
            severity=_worse(self.alert.severity, evaluation.severity(self.bad_steps)),
            origin=origin,
        )
        self._note_peak(bad, evaluation)
        self._note_spread(evaluation.step)

    def rest(self) -> None:
        """Note a good step."""
        self.bad_steps, self.good_steps, self.absent_steps = 0, self.good_steps + 1, 0

    def miss(self) -> None:
        """Note a step in which none of its layers was there."""
        self.absent_steps += 1

    def explain(self, cause: str, evaluation: Evaluation) -> None:
        """Note of a pending alert that it is a consequence of another one, of that id."""
        severity = evaluation.severity(self.bad_steps)
        self.alert = replace(self.alert, part_of=cause, severity=severity)

    def fire(self, rule: Rule, evaluation: Evaluation) -> Alert:
        """Return the event that it fires."""
        worst = self.peak.worst if self.peak is not None else None
        self.alert = replace(
            self.alert, state=AlertState.FIRING, fired_step=evaluation.step, worst=worst
        )
        return self._tell(rule, evaluation.received_ns)

    def news(self) -> tuple[News, ...]:
        """Return what a firing alert has not told."""
        found = []
        if self.alert.severity != self.told.severity:
            found.append(News.SEVERITY)
        if (self.layers & ~self.told.layers).any():
            found.append(News.LAYERS)
        if self.peak is not None:
            found.append(News.VALUE)
        return tuple(found)

    def update(self, news: tuple[News, ...], rule: Rule, evaluation: Evaluation) -> Alert | None:
        """Return the event that tells *news*, None if it has to wait, because it told of itself.

        A higher severity, and the end of a silence, are told at once: there are not many.
        """
        now_ns = evaluation.received_ns
        urgent = News.SEVERITY in news or News.SILENCE_ENDED in news
        if not self.told.limit.acquire(now_ns) and not urgent:
            return None
        joined = self.layers & ~self.told.layers
        step = evaluation.step
        names = evaluation.names
        self._number(news, step, [names[i] for i in np.flatnonzero(joined)] if names else ())
        raised_step = step if News.SEVERITY in news else self.alert.raised_step
        worst = self.peak.worst if self.peak is not None else self.alert.worst
        self.alert = replace(self.alert, raised_step=raised_step, worst=worst)
        return self._tell(rule, now_ns)

    def escalate(self, severity: Severity, part: Part, what: str, evaluation: Evaluation) -> Alert:
        """Return the event that a consequence made it matter more.

        Args:
            severity: How much it matters by now.
            part: The consequence.
            what: What the rule of this alert says of it.
            evaluation: In which the consequence was found.
        """
        self._number((News.SEVERITY,), evaluation.step, (), part)
        self.told.severity = severity
        self.alert = replace(self.alert, severity=severity, raised_step=evaluation.step)
        return self._restate(what, evaluation.received_ns)

    def mention(self, news: News, now_ns: int, what: str) -> Alert:
        """Return the event of something that is no step: *what* is what the message begins with."""
        self._number((news,), self.alert.last_step, ())
        return self._restate(what, now_ns)

    def resolve(self, why: ResolvedBy, step: int, now_ns: int, what: str) -> Alert:
        """Return the event that it is over."""
        worst = self.peak.worst if self.peak is not None else self.alert.worst
        self.alert = replace(
            self.alert,
            state=AlertState.RESOLVED,
            resolved_step=step,
            resolved_by=why,
            worst=worst,
            # Who was told that it fires is told that it is over, and nobody else.
            silenced=not self.told.loudly,
        )
        return self._restate(what, now_ns)

    def look_for_silences(self, silences: Silences, names: tuple[str, ...], now_ns: int) -> bool:
        """Note whether it is silenced; return whether a silence that kept it has ended.

        Args:
            silences: Those in force.
            names: (layers,) names; none of a rule that is about the run.
            now_ns: The time in the log.
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

    def _tell(self, rule: Rule, now_ns: int) -> Alert:
        """Return an event with all that there is to tell."""
        told = self.told
        told.layers, told.severity = self.layers.copy(), self.alert.severity
        if self.peak is not None:
            told.excess, self.peak = self.peak.excess, None
        return self._restate(rule.describe(self.alert.origin), now_ns)

    def _restate(self, what: str, now_ns: int) -> Alert:
        self.told.loudly |= not self.alert.silenced
        changed = replace(self.alert, updated_ns=now_ns)
        self.alert = replace(changed, message=message(changed, what))
        return self.alert

    def _number(
        self, news: tuple[News, ...], step: int, joined: Iterable[str], part: Part | None = None
    ) -> None:
        names = tuple(joined)
        number = 1 if self.alert.update is None else self.alert.update.number + 1
        update = Update(number, step, news, names[:MAX_NAMED_LAYERS], len(names), part)
        self.alert = replace(self.alert, update=update)

    def _grow(self, num_layers: int) -> None:
        missing = num_layers - len(self.layers)
        if missing <= 0:
            return
        self.layers = np.pad(self.layers, (0, missing))
        self.told.layers = np.pad(self.told.layers, (0, missing))
        if self.reference is not None:
            self.reference = np.pad(self.reference, (0, missing), constant_values=np.nan)

    def _name_layers(self, evaluation: Evaluation) -> None:
        origin, names = self.alert.origin, evaluation.names
        flagged = np.flatnonzero(self.layers) if names else np.zeros(0, dtype=np.intp)
        first = origin.layer or origin.first_gradient
        named = [names[i] for i in flagged[:MAX_NAMED_LAYERS]]
        if first is not None and names:
            named = [first, *(name for name in named if name != first)][:MAX_NAMED_LAYERS]
        self.alert = replace(self.alert, layers=tuple(named), num_layers=len(flagged))
        self.silences_version = -1

    def _note_spread(self, step: int) -> None:
        """Note how far it has come, if that is farther than before."""
        known, now = self.alert.spread, Spread(step, self.alert.num_layers, len(self.alert.ranks))
        if known and (known[-1].num_layers, known[-1].num_ranks) == (now.num_layers, now.num_ranks):
            return
        self.alert = replace(self.alert, spread=(*known[: MAX_SPREAD - 1], now))

    def _add_ranks(self, ranks: tuple[int, ...]) -> None:
        if not set(ranks) <= set(self.alert.ranks):
            self.alert = replace(self.alert, ranks=tuple(sorted({*ranks, *self.alert.ranks})))

    def _freeze(self, new: BoolArray, evaluation: Evaluation) -> None:
        if evaluation.reference is None:
            return
        if self.reference is None:
            self.reference = np.full(len(self.layers), np.nan)
        self.reference = np.where(new, evaluation.reference, self.reference)

    def _note_peak(self, bad: BoolArray, evaluation: Evaluation) -> None:
        """Note what is far worse than what was told, and than what waits to be told."""
        least = WORSE * self.told.excess if self.peak is None else self.peak.excess
        excess = _largest(evaluation.excess, bad)
        if excess is None:
            origin = self.alert.origin
            if origin.value >= least and origin.value > self.told.excess:
                worst = Worst(evaluation.step, origin.layer, origin.value, None, origin.ranks)
                self.peak = Peak(origin.value, worst)
                self._add_ranks(origin.ranks)
        elif excess >= least and excess > (self.told.excess if self.peak is None else least):
            origin = evaluation.origin(bad & (evaluation.excess == excess))
            worst = Worst(evaluation.step, origin.layer, origin.value, origin.rank, origin.ranks)
            self.peak = Peak(excess, worst)
            self._add_ranks(origin.ranks)

    def state_dict(self) -> list[Any]:
        """Return plain data for `from_state_dict`."""
        further = {
            "told": self.told.state_dict(),
            "held_steps": self.held_steps,
            "absent_steps": self.absent_steps,
            "reference": None if self.reference is None else pack(self.reference),
            "peak": None if self.peak is None else [self.peak.excess, asdict(self.peak.worst)],
        }
        own = [self.alert.state_dict(), pack(self.layers), self.bad_steps, self.good_steps]
        return [*own, further]

    @classmethod
    def from_state_dict(cls, plain: list[Any]) -> Self:
        """Return what `state_dict` described, of an earlier version too."""
        plain_alert, packed, bad_steps, good_steps, *later = plain
        alert, layers = Alert.from_state_dict(plain_alert), unpack_flags(packed)
        if not later:
            # That version told all there was, and its pending alerts counted bad steps in a row.
            told = Told(layers.copy(), _excess_of(alert.origin), alert.severity, loudly=True)
            return cls(alert, layers, told, bad_steps, good_steps, held_steps=bad_steps)
        further = later[0]
        own = cls(alert, layers, Told.from_state_dict(further["told"]), bad_steps, good_steps)
        own.held_steps, own.absent_steps = further["held_steps"], further["absent_steps"]
        if further["reference"] is not None:
            own.reference = unpack_numbers(further["reference"])
        if further["peak"] is not None:
            excess, worst = further["peak"]
            own.peak = Peak(excess, Worst.from_state_dict(worst))
        return own


def _largest(excess: FloatArray | None, flagged: BoolArray) -> float | None:
    """Return the largest excess of the flagged layers, None if there is none that is a number."""
    if excess is None:
        return None
    found = excess[flagged]
    found = found[~np.isnan(found)]
    return float(found.max()) if len(found) else None


def _excess_of(origin: Origin) -> float:
    """Return the excess of an origin, as far as its limit tells."""
    value, limit = origin.value, origin.threshold
    if limit is None:
        return value
    if value > limit:
        return value / limit
    return limit / value if value else math.inf


def is_worse(one: Severity, other: Severity) -> bool:
    """Tell whether one severity is above another."""
    order = list(Severity)
    return order.index(one) > order.index(other)


def _worse(one: Severity, other: Severity) -> Severity:
    return one if is_worse(one, other) else other
