"""The life of an alert: inactive, pending, firing, resolved. One per rule and group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from gradwatch_server.core.alerting.alert import Alert, alert_id, message
from gradwatch_server.core.alerting.evaluation import (
    RECORDS,
    Context,
    Evaluation,
    sight,
    sight_gains,
    sight_loss,
    sight_no_loss,
)
from gradwatch_server.core.alerting.rules import Flags, LayerRuleName, Rule, RuleName, Rules
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.frames.gains import GainFrame
from gradwatch_server.core.losses import LostRange, extended
from gradwatch_server.core.packing import pack, unpack
from gradwatch_wire.health import AlertState, Severity

LAYER_RULES: Final[tuple[LayerRuleName, ...]] = ("nonfinite", "exploding", "vanishing")

MAX_NAMED_LAYERS: Final = 20

MAX_KEPT: Final = 256
"""Resolved alerts kept in memory per attempt; the store keeps them all."""


@dataclass(slots=True)
class ActiveAlert:
    """What the book remembers of one alert while it is pending or firing."""

    alert: Alert
    layers: BoolArray
    bad_steps: int = 1  # in a row
    good_steps: int = 0

    def among(self, marked: BoolArray) -> BoolArray:
        """Return those marked layers that were bad before; more layers may exist by now."""
        known: BoolArray = np.zeros_like(marked)
        known[: len(self.layers)] = marked[: len(self.layers)] & self.layers
        return known

    def extend(self, bad: BoolArray, sighting: Evaluation) -> None:
        """Note another bad step, the layers it adds, and how much it matters by now."""
        self.bad_steps, self.good_steps = self.bad_steps + 1, 0
        if len(self.layers) < len(bad):
            self.layers = np.pad(self.layers, (0, len(bad) - len(self.layers)))
        if (bad & ~self.layers).any():
            self.layers = self.layers | bad
            layers, num_layers = _named(self.layers, sighting.names)
            self.alert = replace(self.alert, layers=layers, num_layers=num_layers)
        severity = _worse(self.alert.severity, sighting.severity(self.bad_steps))
        self.alert = replace(self.alert, last_step=sighting.step, severity=severity)

    def raised_to(self, severity: Severity, sighting: Evaluation) -> bool:
        """Tell whether the firing alert matters more than *severity* by now, and note the step."""
        if self.alert.state is not AlertState.FIRING or self.alert.severity == severity:
            return False
        self.alert = replace(self.alert, raised_step=sighting.step, updated_ns=sighting.received_ns)
        return True

    def rest(self) -> None:
        """Note a good step."""
        self.bad_steps, self.good_steps = 0, self.good_steps + 1


@dataclass(slots=True)
class ActiveAlerts:
    """All alerts of one attempt."""

    _lives: dict[tuple[RuleName, str], ActiveAlert] = field(default_factory=dict)
    _resolved: list[Alert] = field(default_factory=list)

    def alerts(self) -> tuple[Alert, ...]:
        """Return pending and firing alerts, then resolved ones, newest first."""
        live = sorted((life.alert for life in self._lives.values()), key=_age, reverse=True)
        return (*live, *reversed(self._resolved))

    def freeze(self, of_alert: Callable[[Alert], Any]) -> dict[str, Any]:
        """Return plain data for `thaw`."""
        lives = [
            [*key, of_alert(life.alert), pack(life.layers), life.bad_steps, life.good_steps]
            for key, life in self._lives.items()
        ]
        return {"lives": lives, "resolved": [of_alert(alert) for alert in self._resolved]}

    @classmethod
    def thaw(cls, plain: dict[str, Any], to_alert: Callable[[Any], Alert]) -> ActiveAlerts:
        """Return the book that `freeze` described."""
        made = cls(_resolved=[to_alert(alert) for alert in plain["resolved"]])
        for rule, group, alert, layers, bad_steps, good_steps in plain["lives"]:
            life = ActiveAlert(to_alert(alert), unpack(layers), bad_steps, good_steps)
            made._lives[rule, group] = life
        return made

    def update(
        self, frame: Frame, marked: Flags, rules: Rules, context: Context
    ) -> Iterator[Alert]:
        """Judge one frame; yield each alert that now fires, rises or is resolved."""
        for name in LAYER_RULES:
            rule: Rule = getattr(rules, name)
            if not rule.enabled or (not self._lives and not getattr(marked, name).any()):
                continue
            for sighting in sight(name, frame, marked, rules, context):
                yield from self._step(sighting, rule, context)
        if rules.records_lost.enabled and ("records_lost", RECORDS) in self._lives:
            yield from self._step(sight_no_loss(frame, rules), rules.records_lost, context)

    def update_losses(
        self, rank: int, lost: LostRange, now_ns: int, rules: Rules, context: Context
    ) -> Iterator[Alert]:
        """Note a declared loss; yield the alert if it is the first of its episode."""
        if not rules.records_lost.enabled:
            return
        life = self._lives.get(("records_lost", RECORDS))
        if life is not None:
            origin = extended(life.alert.origin, rank, lost)
            life.alert = replace(life.alert, origin=origin)
        sighting = sight_loss(rank, lost, now_ns, rules)
        yield from self._step(sighting, rules.records_lost, context)

    def update_gains(self, frame: GainFrame, rules: Rules, context: Context) -> Iterator[Alert]:
        """Do the same by the gains of one step."""
        if rules.gain.enabled:
            yield from self._step(sight_gains(frame, rules), rules.gain, context)

    def _step(self, sighting: Evaluation, rule: Rule, context: Context) -> Iterator[Alert]:
        key, own = (sighting.rule, sighting.group), sighting.verdict
        life = self._lives.get(key)
        if life is None:
            if not own.raised.any():
                return
            life = self._lives[key] = _begin(sighting, context)
        elif life.alert.state is AlertState.PENDING:
            if own.raised.any():
                life.extend(own.raised, sighting)
            elif life.among(own.seen).any():
                del self._lives[key]
                return
        elif (bad := own.raised | life.among(own.held)).any():
            severity = life.alert.severity
            life.extend(bad, sighting)
            if life.raised_to(severity, sighting):
                yield life.alert
        elif life.among(own.seen).any():
            life.rest()
        yield from self._transition(life, rule, sighting)

    def _transition(self, life: ActiveAlert, rule: Rule, sighting: Evaluation) -> Iterator[Alert]:
        alert = life.alert
        if alert.state is AlertState.PENDING and life.bad_steps >= rule.for_steps:
            life.alert = _restate(alert, AlertState.FIRING, sighting)
            yield life.alert
        elif alert.state is AlertState.FIRING and life.good_steps >= rule.clear_steps:
            del self._lives[sighting.rule, sighting.group]
            resolved = _restate(alert, AlertState.RESOLVED, sighting)
            self._resolved = [*self._resolved[-MAX_KEPT + 1 :], resolved]
            yield resolved


def _age(alert: Alert) -> tuple[int, str]:
    return alert.first_step, alert.id


def _begin(sighting: Evaluation, context: Context) -> ActiveAlert:
    raised = sighting.verdict.raised
    origin = sighting.origin(raised)
    layers, num_layers = _named(raised, sighting.names)
    alert = Alert(
        id=alert_id(
            context.run,
            context.attempt,
            sighting.rule,
            sighting.key or sighting.group,
            origin.step,
        ),
        run=context.run,
        attempt=context.attempt,
        rule=sighting.rule,
        group=sighting.group,
        severity=sighting.severity(1),
        state=AlertState.PENDING,
        first_step=origin.step,
        fired_step=None,
        raised_step=None,
        resolved_step=None,
        last_step=sighting.step,
        origin=origin,
        layers=layers,
        num_layers=num_layers,
        updated_ns=sighting.received_ns,
        message="",
    )
    return ActiveAlert(alert=replace(alert, message=message(alert)), layers=raised.copy())


def _restate(alert: Alert, state: AlertState, sighting: Evaluation) -> Alert:
    step = {"fired_step" if state is AlertState.FIRING else "resolved_step": sighting.step}
    changed = replace(alert, state=state, updated_ns=sighting.received_ns, **step)  # type: ignore[arg-type]  # mypy cannot type a computed keyword
    return replace(changed, message=message(changed))


def _named(layers: BoolArray, names: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """Return the first names of the layers that are marked, and how many there are."""
    if not names:
        return (), 0
    marked = np.flatnonzero(layers)
    return tuple(names[i] for i in marked[:MAX_NAMED_LAYERS]), len(marked)


def _worse(one: Severity, other: Severity) -> Severity:
    return max(one, other, key=list(Severity).index)
