"""The life of an alert: inactive, pending, firing, resolved. One per rule and group of layers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

import numpy as np

from gradwatch_server.core.frames import BoolArray, Frame
from gradwatch_server.core.origin import Origin, find_layer, find_origin
from gradwatch_server.core.rules import (
    Flags,
    Rule,
    RuleName,
    Rules,
    Verdict,
    verdict,
)
from gradwatch_server.core.windows import Window
from gradwatch_wire import Json
from gradwatch_wire.health import AlertState

RULE_NAMES: tuple[RuleName, ...] = ("nonfinite", "exploding", "vanishing")
ALL_LAYERS = "all"
"""The group of the layers that are in no named group."""

MAX_NAMED_LAYERS = 20
NUM_BEFORE = 5
"""Frames before the first bad one that an origin shows."""

MAX_KEPT = 256
"""Resolved alerts kept in memory per attempt; the store keeps them all."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert as it stands.

    Args:
        id: 16 hexadecimal digits, the same whenever the same log is read.
        run: Name of the run.
        attempt: Attempt of the run, from 1.
        rule: Name of the rule.
        group: Group of layers, `all` without named groups.
        severity: `info`, `warning` or `critical`.
        state: `pending`, `firing` or `resolved`.
        first_step: First bad step, the one of the origin.
        fired_step: Step at which it fired, None while pending.
        resolved_step: Step at which it was resolved, None before.
        last_step: Last bad step.
        origin: Where it began.
        layers: Names of the layers that were bad in it, in forward order, at most 20.
        num_layers: How many there are.
        updated_ns: When the state last changed, nanoseconds since the epoch.
        message: All of it in one line.
    """

    id: str
    run: str
    attempt: int
    rule: RuleName
    group: str
    severity: str
    state: AlertState
    first_step: int
    fired_step: int | None
    resolved_step: int | None
    last_step: int
    origin: Origin
    layers: tuple[str, ...]
    num_layers: int
    updated_ns: int
    message: str

    def to_dict(self) -> dict[str, Json]:
        """Return plain data, floats as they are: `jsonable` makes it JSON."""
        plain: dict[str, Json] = asdict(self)
        # Nanoseconds since the epoch are beyond what JSON readers keep exactly.
        del plain["updated_ns"]
        plain["updated_at"] = isotime(self.updated_ns)
        origin = asdict(self.origin)
        origin["before"] = [{"step": step, "l2": l2} for step, l2 in self.origin.before]
        plain["origin"] = origin
        return plain


@dataclass(slots=True)
class _Life:
    """What the book remembers of one alert while it is pending or firing."""

    alert: Alert
    layers: BoolArray
    bad_steps: int = 1
    good_steps: int = 0

    def among(self, marked: BoolArray) -> BoolArray:
        """Return those marked layers that were bad before; more layers may exist by now."""
        known: BoolArray = np.zeros_like(marked)
        known[: len(self.layers)] = marked[: len(self.layers)] & self.layers
        return known


@dataclass(frozen=True, slots=True)
class Context:
    """What the book needs to know of the attempt that a frame belongs to."""

    run: str
    attempt: int
    names: tuple[str, ...]
    groups: Mapping[str, BoolArray]  # (layers,) each
    window: Window


@dataclass(slots=True)
class Book:
    """All alerts of one attempt."""

    _lives: dict[tuple[RuleName, str], _Life] = field(default_factory=dict)
    _resolved: list[Alert] = field(default_factory=list)

    def alerts(self) -> tuple[Alert, ...]:
        """Return pending and firing alerts, then resolved ones, newest first."""
        live = sorted((life.alert for life in self._lives.values()), key=_age, reverse=True)
        return (*live, *reversed(self._resolved))

    def update(
        self, frame: Frame, marked: Flags, rules: Rules, context: Context
    ) -> Iterator[Alert]:
        """Judge one frame; yield each alert that now fires or is resolved."""
        for name in RULE_NAMES:
            rule: Rule = getattr(rules, name)
            if not rule.enabled or (not self._lives and not getattr(marked, name).any()):
                continue
            judged = verdict(name, frame, marked, rules)
            for group, members in context.groups.items():
                own = Verdict(judged.raised & members, judged.held & members, judged.seen)
                alert = self._step((name, group), own, frame, rules, context)
                if alert is not None:
                    yield alert

    def _step(
        self,
        key: tuple[RuleName, str],
        own: Verdict,
        frame: Frame,
        rules: Rules,
        context: Context,
    ) -> Alert | None:
        life = self._lives.get(key)
        rule: Rule = getattr(rules, key[0])
        if life is None:
            if not own.raised.any():
                return None
            life = self._lives[key] = _begin(key, own.raised, frame, rules, context)
        elif life.alert.state is AlertState.PENDING:
            if own.raised.any():
                life.bad_steps += 1
                _extend(life, own.raised, frame.step, context)
            elif life.among(own.seen).any():
                del self._lives[key]
                return None
        elif (bad := own.raised | life.among(own.held)).any():
            life.good_steps = 0
            _extend(life, bad, frame.step, context)
        elif life.among(own.seen).any():
            life.good_steps += 1
        return self._transition(key, life, rule, frame)

    def _transition(
        self, key: tuple[RuleName, str], life: _Life, rule: Rule, frame: Frame
    ) -> Alert | None:
        alert = life.alert
        if alert.state is AlertState.PENDING and life.bad_steps >= rule.for_steps:
            life.alert = _restate(alert, AlertState.FIRING, frame)
            return life.alert
        if alert.state is AlertState.FIRING and life.good_steps >= rule.clear_steps:
            del self._lives[key]
            resolved = _restate(alert, AlertState.RESOLVED, frame)
            self._resolved = [*self._resolved[-MAX_KEPT + 1 :], resolved]
            return resolved
        return None


def isotime(time_ns: int) -> str:
    """Return a UTC time in ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="milliseconds")


def alert_id(run: str, attempt: int, rule: str, group: str, first_step: int) -> str:
    """Return the id that this alert has whenever it is derived again."""
    text = "\0".join((run, str(attempt), rule, group, str(first_step)))
    return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()


def printable(text: str) -> str:
    """Return *text* with what a terminal would act on escaped: names come from the wire."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _age(alert: Alert) -> tuple[int, str]:
    return alert.first_step, alert.id


def _begin(
    key: tuple[RuleName, str], raised: BoolArray, frame: Frame, rules: Rules, context: Context
) -> _Life:
    rule, group = key
    origin = find_origin(rule, frame, raised, rules, context.names)
    index = find_layer(rule, frame, raised)
    if index is not None:
        origin = replace(origin, before=context.window.before(index, NUM_BEFORE))
    alert = Alert(
        id=alert_id(context.run, context.attempt, rule, group, frame.step),
        run=context.run,
        attempt=context.attempt,
        rule=rule,
        group=group,
        severity=str(getattr(rules, rule).severity),
        state=AlertState.PENDING,
        first_step=frame.step,
        fired_step=None,
        resolved_step=None,
        last_step=frame.step,
        origin=origin,
        layers=_named(raised, context.names),
        num_layers=int(np.count_nonzero(raised)),
        updated_ns=frame.received_ns,
        message="",
    )
    return _Life(alert=replace(alert, message=_message(alert)), layers=raised.copy())


def _extend(life: _Life, bad: BoolArray, step: int, context: Context) -> None:
    """Note another bad step and the layers it adds."""
    if len(life.layers) < len(bad):
        life.layers = np.pad(life.layers, (0, len(bad) - len(life.layers)))
    if (bad & ~life.layers).any():
        life.layers = life.layers | bad
        life.alert = replace(
            life.alert,
            layers=_named(life.layers, context.names),
            num_layers=int(np.count_nonzero(life.layers)),
        )
    life.alert = replace(life.alert, last_step=step)


def _restate(alert: Alert, state: AlertState, frame: Frame) -> Alert:
    step = {"fired_step" if state is AlertState.FIRING else "resolved_step": frame.step}
    changed = replace(alert, state=state, updated_ns=frame.received_ns, **step)  # type: ignore[arg-type]  # mypy cannot type a computed keyword
    return replace(changed, message=_message(changed))


def _named(layers: BoolArray, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(names[i] for i in np.flatnonzero(layers)[:MAX_NAMED_LAYERS])


def _message(alert: Alert) -> str:
    origin = alert.origin
    rank = f"rank {origin.rank}" if origin.rank is not None else _several(origin.ranks)
    layer = "a layer not known" if origin.layer is None else printable(origin.layer)
    what = {
        "nonfinite": f"{'NaN' if origin.kind == 'nan' else 'Inf'} in the gradient of {layer}",
        "exploding": f"gradient of {layer} has L2 norm {origin.value:.3g} > {origin.threshold:g}"
        if origin.threshold
        else "",
        "vanishing": f"gradient of {layer} has L2 norm {origin.value:.3g} < {origin.threshold:g}"
        if origin.threshold
        else "",
    }[alert.rule]
    more = f", {alert.num_layers} layers" if alert.num_layers > 1 else ""
    end = f", over at step {alert.resolved_step}" if alert.resolved_step is not None else ""
    return f"{what} at step {origin.step} on {rank}{more}{end}"


def _several(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return "a rank that cannot be known"
    return "ranks " + ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
