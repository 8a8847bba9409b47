"""The life of an alert: inactive, pending, firing, resolved. One per rule and group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from gradwatch_server.core.alerting import alert_events
from gradwatch_server.core.alerting.active_alert import BURST, INTERVAL_NS, ActiveAlert
from gradwatch_server.core.alerting.alert import (
    Acknowledgement,
    Alert,
    News,
    RelatedAlert,
    ResolvedBy,
)
from gradwatch_server.core.alerting.alert_budget import AlertBudget
from gradwatch_server.core.alerting.evaluation import Context, Evaluation
from gradwatch_server.core.alerting.flags import Flags
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.base import Rule, Sign
from gradwatch_server.core.alerting.sentences import headline
from gradwatch_server.core.alerting.severities import is_worse
from gradwatch_server.core.alerting.silences import Silences
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame, LateFrame
from gradwatch_server.core.judge.series import TOTAL
from gradwatch_wire.health import SENTINEL_FACTOR, AlertState, Severity

SURELY: Final = 2.0
"""Times the sentinel's own limit from which on a rise is one that the sentinel would have seen:
client and judge find different norms usual."""

FOLLOW_STEPS: Final = 32
"""Steps after the last bad one of an alert in which others are taken for consequences of it."""


@dataclass(frozen=True, slots=True)
class Cause:
    """An alert that others follow."""

    alert_id: str
    severity: Severity
    last_step: int
    group: str


@dataclass(slots=True)
class Incidents:
    """The newest alert of each rule that mattered more than `info`."""

    _causes: dict[str, Cause] = field(default_factory=dict)

    def note(self, rule: str, alert: Alert, last_step: int) -> None:
        """Note that an alert of a rule fires, or is bad again.

        One that nobody is told of explains nothing to anybody: what it led to is told by itself.
        """
        if alert.silenced:
            if (known := self._causes.get(rule)) is not None and known.alert_id == alert.id:
                del self._causes[rule]
        elif alert.severity is not Severity.INFO:
            self._causes[rule] = Cause(alert.id, alert.severity, last_step, alert.group)

    def cause_of(
        self,
        follows: Iterable[str],
        step: int,
        *,
        of: str = "",
        again: tuple[str, str] | None = None,
    ) -> Cause | None:
        """Return the alert that one beginning at a step is a consequence of, None if of none.

        Args:
            of: Id of the alert in question, which is no consequence of itself.
            again: Its rule and group, if it may be the same once more that was over.
        """
        for rule in follows:
            cause = self._causes.get(rule)
            if cause is not None and cause.alert_id != of and _is_soon(step, cause):
                return cause
        if again is None:
            return None
        rule, group = again
        cause = self._causes.get(rule)
        is_same = cause is not None and cause.group == group and cause.alert_id != of
        return cause if is_same and cause is not None and _is_soon(step, cause) else None


def as_consequence(
    severity: Callable[[int], Severity], cause: Cause, *, goes_on: bool
) -> Callable[[int], Severity]:
    """Return the severity of what is a consequence.

    It is `info` as long as the cause fires, which is then told to be as severe as it. Once that is
    over it is `info` unless it is above that of the cause.
    """

    def capped(in_a_row: int) -> Severity:
        if goes_on:
            return Severity.INFO
        by_itself = severity(in_a_row)
        return by_itself if is_worse(by_itself, cause.severity) else Severity.INFO

    return capped


def _is_soon(step: int, cause: Cause) -> bool:
    return 0 <= step - cause.last_step <= FOLLOW_STEPS


MAX_KEPT: Final = 256
"""Resolved alerts kept in memory per attempt; the store keeps them all."""

FORGIVEN_STEPS: Final = 1
"""Good steps in a row that a pending alert outlives."""

GONE_STEPS: Final = 20
"""Steps in a row without any layer of an alert after which it is over. Optimizers take turns, so
that a layer may be away for some."""

_NOTHING: Final = np.zeros(1, dtype=np.bool_)

_Key = tuple[str, str]


@dataclass
class Allowance:
    """Decision whether an event of an alert is told now, or waits.

    Args:
        critical: Rules of which a critical event was told.

    Attributes:
        budget: Events that the run has left; its other attempts have the same one.
    """

    critical: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.budget = AlertBudget()

    def may_tell(self, active: ActiveAlert, severity: Severity, now_ns: int) -> bool:
        """Tell whether an event may be told now, and count it if it may.

        The first critical one of a rule is told in any case.
        """
        is_first = (
            severity is Severity.CRITICAL
            and not active.alert.silenced
            and active.alert.rule not in self.critical
        )
        if not self.budget.may_tell(now_ns, severity) and not is_first:
            self.budget.num_delayed += not active.waits
            active.waits = True
            return False
        if is_first:
            self.critical.add(active.alert.rule)
        return True

    def may_update(self, active: ActiveAlert, news: tuple[News, ...], now_ns: int) -> bool:
        """Tell whether news may be told now; if not, they are told with the next ones.

        A higher severity is no matter of how often the alert told of itself: there are not many.
        """
        if News.SILENCE_ENDED in news:
            self.take(active, now_ns)
            return True
        is_due = News.SEVERITY in news or active.told.rate.allows(now_ns, BURST, INTERVAL_NS)
        return is_due and self.may_tell(active, active.alert.severity, now_ns)

    def take(self, active: ActiveAlert, now_ns: int) -> None:
        """Count an event that is told in any case: somebody asked for it, and it comes once."""
        self.budget.may_tell(now_ns, active.alert.severity)


@dataclass
class ActiveAlerts:
    """The alerts of one attempt: the active ones by rule and group, and the newest resolved.

    Args:
        allowance: Events that they may have; an alert whose event has to wait stays as it is.
    """

    active: dict[_Key, ActiveAlert] = field(default_factory=dict)
    _resolved: list[Alert] = field(default_factory=list)
    _incidents: Incidents = field(default_factory=Incidents)
    allowance: Allowance = field(default_factory=Allowance)

    def __post_init__(self) -> None:
        self.silences = Silences()
        for active in self.active.values():
            active.silences_version = -1  # versions do not outlive a restart

    def alerts(self) -> tuple[Alert, ...]:
        """Return pending and firing alerts, then resolved ones, newest first."""
        active = [active.as_it_stands() for active in self.active.values()]
        active.sort(key=lambda alert: (alert.first_step, alert.id), reverse=True)
        return (*active, *reversed(self._resolved))

    def layers_of(self, alert_id: str) -> BoolArray | None:
        """Return (layers,) what was bad in a pending or firing alert so far, None of another one.

        (1,) of a rule about the run.
        """
        layers = (active.layers for active in self.active.values() if active.alert.id == alert_id)
        return next(layers, None)

    def __bool__(self) -> bool:
        return bool(self.active)

    def update(
        self, observation: object, flags: Flags, rules: Rules, context: Context
    ) -> Iterator[Alert]:
        """Evaluate an observation; yield each event: an alert fires, has news, or is resolved."""
        if self.active and isinstance(observation, Frame):
            yield from self._end_of_rules(rules, observation)
        if not (self.active or flags.raised):  # nearly always
            return
        active = {rule for rule, _ in self.active}
        for name, rule in rules.taking(type(observation)):
            raised = flags.masks.get(name, _NOTHING)
            # Most frames end here. To count is ten times as fast as `any`.
            if not rule.enabled or not (name in active or np.count_nonzero(raised)):
                continue
            limited = context.of(name)
            frame = _dated(observation, rule)
            for evaluation in rule.evaluate(observation, raised, limited):
                if frame is not None:
                    find = partial(_origin_of, evaluation.origin, frame, context)
                    evaluation = replace(evaluation, origin=find)  # noqa: PLW2901 - the same
                yield from self._step(name, rules, evaluation, context)

    def acknowledge(self, alert_id: str, who: Acknowledgement) -> Iterator[Alert]:
        """Note that somebody knows of an alert that fires; yield the event of it."""
        for active in self.active.values():
            if active.alert.id == alert_id and active.alert.state is AlertState.FIRING:
                active.alert = replace(active.alert, acknowledged=who)
                self.allowance.take(active, who.at_ns)
                yield alert_events.add_note(active, News.ACKNOWLEDGED, who.at_ns)

    def apply_silences(self, names: tuple[str, ...], now_ns: int) -> None:
        """Show at once what new silences keep; that one ended is told at the next step."""
        for active in self.active.values():
            if not active.alert.silenced:
                active.apply_silences(
                    self.silences, names if active.alert.num_layers else (), now_ns
                )

    def _step(
        self, name: str, rules: Rules, evaluation: Evaluation, context: Context
    ) -> Iterator[Alert]:
        rule, key = rules.root[name], (name, evaluation.group)
        if key not in self.active and not np.count_nonzero(evaluation.verdict.raised):
            return
        cause = self._cause_of(key, rule, evaluation)
        root = None if cause is None else self._firing(cause.alert_id)
        by_itself = evaluation.severity
        if cause is not None:
            severity = as_consequence(by_itself, cause, goes_on=root is not None)
            evaluation = replace(evaluation, severity=severity)
        active = self._follow(key, evaluation, context)
        if cause is not None and active.alert.state is AlertState.PENDING:
            active.explain(cause.alert_id, evaluation)
        yield from self._transition(key, rule, evaluation)
        if active.alert.state is not AlertState.FIRING:
            return
        self._incidents.note(active.alert.rule, active.alert, active.last_step)
        severity_now = by_itself(active.bad_steps)
        if (
            root is not None
            and is_worse(severity_now, root.alert.severity)
            and self.allowance.may_tell(root, severity_now, evaluation.received_ns)
        ):
            part = RelatedAlert(name, headline(active.alert))
            yield alert_events.escalate(root, severity_now, part, evaluation)
            self._incidents.note(root.alert.rule, root.alert, root.last_step)

    def _cause_of(self, key: _Key, rule: Rule, evaluation: Evaluation) -> Cause | None:
        """Return what an alert that is there, or begins, is a consequence of."""
        if evaluation.is_alone:
            return None
        name, group = key
        active = self.active.get(key)
        return self._incidents.cause_of(
            rule.follows,
            evaluation.step,
            of="" if active is None else active.alert.id,
            again=(name, group) if rule.recurs else None,
        )

    def _follow(self, key: _Key, evaluation: Evaluation, context: Context) -> ActiveAlert:
        """Return the alert with what an evaluation adds to it, or begins it."""
        active, verdict = self.active.get(key), evaluation.verdict
        if active is None:
            taken = {alert.id for alert in self._resolved if alert.rule == key[0]}
            limit = self.allowance.budget.limits.alert_bytes
            active = ActiveAlert.begin(key[0], evaluation, context, taken, limit)
            self.active[key] = active
        elif np.count_nonzero(bad := self._bad(active, evaluation)):
            active.extend(bad, evaluation)
        elif np.count_nonzero(active.among(verdict.seen)):
            active.rest()
        elif _is_absent(active, evaluation):
            active.miss()
        return active

    def _firing(self, alert_id: str) -> ActiveAlert | None:
        """Return an alert that fires, None if it does not any more."""
        for active in self.active.values():
            if active.alert.id == alert_id:
                return active if active.alert.state is AlertState.FIRING else None
        return None

    def _bad(self, active: ActiveAlert, evaluation: Evaluation) -> BoolArray:
        """Return the layers that keep an alert: to fire, it has to be raised again and again."""
        verdict = evaluation.verdict
        if active.alert.state is AlertState.PENDING:
            return verdict.raised
        return verdict.raised | active.among(verdict.held)

    def _transition(self, key: _Key, rule: Rule, evaluation: Evaluation) -> Iterator[Alert]:
        active, now_ns = self.active[key], evaluation.received_ns
        ended = active.apply_silences(self.silences, evaluation.names, now_ns)
        gone = active.absent_steps >= GONE_STEPS
        is_over = active.good_steps >= (evaluation.clear_steps or rule.clear_steps) or gone
        if active.alert.state is AlertState.PENDING:
            if active.held_steps >= (evaluation.for_steps or rule.for_steps):
                if self.allowance.may_tell(active, active.alert.severity, now_ns):
                    yield alert_events.fire(active, evaluation)
                else:
                    active.is_over = is_over
            elif active.good_steps > FORGIVEN_STEPS or gone:
                del self.active[key]
        elif is_over:
            if self.allowance.may_tell(active, active.alert.severity, now_ns):
                reason = _why_gone(active, evaluation) if gone else ResolvedBy.CLEAR
                yield self._resolve(key, reason, evaluation.step, now_ns)
            else:
                active.is_over = True
        else:
            news = (*active.news(), *((News.SILENCE_ENDED,) if ended else ()))
            if news and self.allowance.may_update(active, news, now_ns):
                yield alert_events.update(active, news, evaluation)

    def _end_of_rules(self, rules: Rules, frame: Frame) -> Iterator[Alert]:
        """End the alerts of rules that are off, or that do not watch the run any more."""
        for key, active in list(self.active.items()):
            rule = rules.root.get(key[0])
            if rule is not None and rule.enabled:
                continue
            if active.alert.state is AlertState.PENDING:
                del self.active[key]
                continue
            yield self._resolve(key, ResolvedBy.RULE_OFF, frame.step, frame.received_ns)

    def _resolve(self, key: _Key, reason: ResolvedBy, step: int, now_ns: int) -> Alert:
        resolved = alert_events.resolve(self.active.pop(key), reason, step, now_ns)
        self._resolved = [*self._resolved[-MAX_KEPT + 1 :], resolved]
        return resolved


def _is_absent(active: ActiveAlert, evaluation: Evaluation) -> bool:
    """Tell whether none of an alert's layers is there, though others are."""
    present = evaluation.verdict.present
    return present is not None and bool(present.any()) and not active.among(present).any()


def _why_gone(active: ActiveAlert, evaluation: Evaluation) -> ResolvedBy:
    """Return why none of an alert's layers is there any more."""
    frozen = evaluation.verdict.frozen
    if frozen is None or np.count_nonzero(active.among(frozen)) < np.count_nonzero(active.layers):
        return ResolvedBy.GONE
    return ResolvedBy.FROZEN


def _dated(observation: object, rule: Rule) -> Frame | None:
    """Return the frame that dates what a rule finds; None of what no step and no batch has done."""
    if not isinstance(observation, Frame) or isinstance(observation, LateFrame):
        return None
    return None if rule.signs == Sign.SILENT_BUG else observation


def _origin_of(
    find: Callable[[BoolArray], Origin], frame: Frame, context: Context, raised: BoolArray
) -> Origin:
    """Return an origin with its batch, and the last step before it that was seen, if not the last.

    A sentinel that was quiet has seen that the norm of the whole was below `SENTINEL_FACTOR` times
    the usual one.
    """
    origin = find(raised)
    batch, place = frame.batch_of(origin.rank, origin.step), frame.place_of(origin.rank)
    if batch or place:
        origin = replace(origin, batch=batch, place=place)
    if origin.kind is not None or origin.last_good_step is not None:
        return origin  # the records themselves date what is not finite
    before = context.window.step_before(origin.step)
    if before is None:
        return origin
    rise = context.judge.detector.rise
    is_loud = len(rise) and rise[0, TOTAL] >= math.log(SURELY * SENTINEL_FACTOR)
    if origin.step == frame.step and is_loud and frame.last_good_step is not None:
        before = max(before, frame.last_good_step)
    return replace(origin, last_good_step=before) if before < origin.step - 1 else origin
