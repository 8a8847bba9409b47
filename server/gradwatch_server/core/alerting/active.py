"""The life of an alert: inactive, pending, firing, resolved. One per rule and group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np

from gradwatch_server.core.alerting.alert import Alert, alert_id, message
from gradwatch_server.core.alerting.evaluation import Context, Evaluation
from gradwatch_server.core.alerting.flags import Flags
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.base import Rule
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.packing import pack, unpack
from gradwatch_wire.health import AlertState, Severity

MAX_NAMED_LAYERS: Final = 20

MAX_KEPT: Final = 256
"""Resolved alerts kept in memory per attempt; the store keeps them all."""

_NOTHING: Final = np.zeros(1, dtype=np.bool_)


@dataclass(slots=True)
class ActiveAlert:
    """An alert while it is pending or firing.

    Args:
        alert: As it stands.
        layers: (layers,) bad in it so far, or (1,) of a rule about the run.
        bad_steps: Bad steps in a row.
        good_steps: Good steps in a row.
    """

    alert: Alert
    layers: BoolArray
    bad_steps: int = 1
    good_steps: int = 0

    def among(self, flagged: BoolArray) -> BoolArray:
        """Return those flagged layers that were bad before; more layers may exist by now."""
        known: BoolArray = np.zeros_like(flagged)
        known[: len(self.layers)] = flagged[: len(self.layers)] & self.layers
        return known

    def extend(self, bad: BoolArray, evaluation: Evaluation) -> None:
        """Note another bad step, the layers it adds, and how much it matters by now."""
        self.bad_steps, self.good_steps = self.bad_steps + 1, 0
        if len(self.layers) < len(bad):
            self.layers = np.pad(self.layers, (0, len(bad) - len(self.layers)))
        if (bad & ~self.layers).any():
            self.layers = self.layers | bad
            layers, num_layers = _named(self.layers, evaluation.names)
            self.alert = replace(self.alert, layers=layers, num_layers=num_layers)
        self.alert = replace(
            self.alert,
            last_step=evaluation.step,
            severity=_worse(self.alert.severity, evaluation.severity(self.bad_steps)),
            origin=evaluation.extend(self.alert.origin),
        )

    def raised_to(self, severity: Severity, evaluation: Evaluation) -> bool:
        """Tell whether the firing alert matters more than *severity* by now, and note the step."""
        if self.alert.state is not AlertState.FIRING or self.alert.severity == severity:
            return False
        step, updated_ns = evaluation.step, evaluation.received_ns
        self.alert = replace(self.alert, raised_step=step, updated_ns=updated_ns)
        return True

    def rest(self) -> None:
        """Note a good step."""
        self.bad_steps, self.good_steps = 0, self.good_steps + 1

    def state_dict(self) -> list[Any]:
        """Return plain data for `from_state_dict`."""
        return [self.alert.state_dict(), pack(self.layers), self.bad_steps, self.good_steps]

    @classmethod
    def from_state_dict(cls, plain: list[Any]) -> Self:
        """Return what `state_dict` described."""
        alert, layers, bad_steps, good_steps = plain
        return cls(Alert.from_state_dict(alert), unpack(layers), bad_steps, good_steps)


@dataclass(slots=True)
class ActiveAlerts:
    """The alerts of one attempt: the active ones by rule and group, and the newest resolved."""

    _active: dict[tuple[str, str], ActiveAlert] = field(default_factory=dict)
    _resolved: list[Alert] = field(default_factory=list)

    def alerts(self) -> tuple[Alert, ...]:
        """Return pending and firing alerts, then resolved ones, newest first."""
        active = sorted((own.alert for own in self._active.values()), key=_age, reverse=True)
        return (*active, *reversed(self._resolved))

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `from_state_dict`."""
        return {
            "lives": [[*key, *own.state_dict()] for key, own in self._active.items()],
            "resolved": [alert.state_dict() for alert in self._resolved],
        }

    @classmethod
    def from_state_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Return what `state_dict` described. What no rule takes up again stays as it stood."""
        active = {
            (rule, group): ActiveAlert.from_state_dict(own) for rule, group, *own in plain["lives"]
        }
        return cls(active, [Alert.from_state_dict(alert) for alert in plain["resolved"]])

    def update(
        self, observation: object, flags: Flags, rules: Rules, context: Context
    ) -> Iterator[Alert]:
        """Evaluate an observation; yield each alert that now fires, rises or is resolved."""
        active = {rule for rule, _ in self._active}
        for name, rule in rules.taking(type(observation)):
            raised = flags.get(name, _NOTHING)
            # Most frames end here. To count is ten times as fast as `any`.
            if not rule.enabled or not (name in active or np.count_nonzero(raised)):
                continue
            for evaluation in rule.evaluate(observation, raised, context):
                yield from self._step(name, rule, evaluation, context)

    def _step(
        self, name: str, rule: Rule, evaluation: Evaluation, context: Context
    ) -> Iterator[Alert]:
        key, verdict = (name, evaluation.group), evaluation.verdict
        own = self._active.get(key)
        if own is None:
            if not verdict.raised.any():
                return
            own = self._active[key] = _begin(name, rule, evaluation, context)
        elif own.alert.state is AlertState.PENDING:
            if verdict.raised.any():
                own.extend(verdict.raised, evaluation)
            elif own.among(verdict.seen).any():
                del self._active[key]
                return
        elif (bad := verdict.raised | own.among(verdict.held)).any():
            severity = own.alert.severity
            own.extend(bad, evaluation)
            if own.raised_to(severity, evaluation):
                yield own.alert
        elif own.among(verdict.seen).any():
            own.rest()
        yield from self._transition(key, rule, evaluation)

    def _transition(
        self, key: tuple[str, str], rule: Rule, evaluation: Evaluation
    ) -> Iterator[Alert]:
        own = self._active[key]
        alert = own.alert
        for_steps = evaluation.for_steps or rule.for_steps
        clear_steps = evaluation.clear_steps or rule.clear_steps
        if alert.state is AlertState.PENDING and own.bad_steps >= for_steps:
            own.alert = _restate(alert, AlertState.FIRING, rule, evaluation)
            yield own.alert
        elif alert.state is AlertState.FIRING and own.good_steps >= clear_steps:
            del self._active[key]
            resolved = _restate(alert, AlertState.RESOLVED, rule, evaluation)
            self._resolved = [*self._resolved[-MAX_KEPT + 1 :], resolved]
            yield resolved


def _age(alert: Alert) -> tuple[int, str]:
    return alert.first_step, alert.id


def _begin(name: str, rule: Rule, evaluation: Evaluation, context: Context) -> ActiveAlert:
    raised = evaluation.verdict.raised
    origin = evaluation.origin(raised)
    layers, num_layers = _named(raised, evaluation.names)
    key = evaluation.key or evaluation.group
    alert = Alert(
        id=alert_id(context.run, context.attempt, name, key, origin.step),
        run=context.run,
        attempt=context.attempt,
        rule=name,
        group=evaluation.group,
        severity=evaluation.severity(1),
        state=AlertState.PENDING,
        first_step=origin.step,
        fired_step=None,
        raised_step=None,
        resolved_step=None,
        last_step=evaluation.step,
        origin=origin,
        layers=layers,
        num_layers=num_layers,
        updated_ns=evaluation.received_ns,
        message="",
    )
    alert = replace(alert, message=message(alert, rule.describe(origin)))
    return ActiveAlert(alert=alert, layers=raised.copy())


def _restate(alert: Alert, state: AlertState, rule: Rule, evaluation: Evaluation) -> Alert:
    step = {"fired_step" if state is AlertState.FIRING else "resolved_step": evaluation.step}
    changed = replace(alert, state=state, updated_ns=evaluation.received_ns, **step)  # type: ignore[arg-type]  # mypy cannot type a computed keyword
    return replace(changed, message=message(changed, rule.describe(changed.origin)))


def _named(layers: BoolArray, names: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """Return the first names of the layers that are flagged, and how many there are."""
    if not names:
        return (), 0
    flagged = np.flatnonzero(layers)
    return tuple(names[i] for i in flagged[:MAX_NAMED_LAYERS]), len(flagged)


def _worse(one: Severity, other: Severity) -> Severity:
    return max(one, other, key=list(Severity).index)
