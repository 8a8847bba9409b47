"""What an alert is, and how it reads. What it says of its rule comes from the rule."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Self

from gradwatch_server.core.alerting.hints import hints_for
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_wire import Json
from gradwatch_wire.health import AlertState, Severity


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert as it stands.

    Args:
        id: 16 hexadecimal digits, the same whenever the same log is read.
        run: Name of the run.
        attempt: Attempt of the run, from 1.
        rule: Name of the rule.
        group: Group of layers, `all` without named groups; of a rule that is about the run, a word
            for what it is about.
        severity: `info`, `warning` or `critical`; it may rise while the alert fires.
        state: `pending`, `firing` or `resolved`.
        first_step: First bad step, the one of the origin.
        fired_step: Step at which it fired, None while pending.
        raised_step: Step at which its severity last rose while it fired, None if it never did.
        resolved_step: Step at which it was resolved, None before.
        last_step: Last bad step.
        origin: Where it began.
        layers: Names of the layers that were bad in it, in forward order, at most 20; none of a
            rule that is about the run.
        num_layers: How many there are.
        updated_ns: When the state last changed, nanoseconds since the epoch.
        message: All of it in one line.
    """

    id: str
    run: str
    attempt: int
    rule: str
    group: str
    severity: Severity
    state: AlertState
    first_step: int
    fired_step: int | None
    raised_step: int | None
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
        origin["magnitudes_before"] = [
            {"step": step, "magnitude": magnitude}
            for step, magnitude in self.origin.magnitudes_before
        ]
        plain["origin"] = origin
        plain["hints"] = list(hints_for(self.rule))
        return plain

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `from_state_dict`."""
        return asdict(self)

    @classmethod
    def from_state_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Return what `state_dict` described."""
        changes = {
            "origin": Origin.from_state_dict(plain["origin"]),
            "severity": Severity(plain["severity"]),
            "state": AlertState(plain["state"]),
            "layers": tuple(plain["layers"]),
        }
        return cls(**{**plain, **changes})


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


def message(alert: Alert, what: str) -> str:
    """Return what an alert says, in one line; *what* is what its rule says of the origin."""
    origin = alert.origin
    rank = f"rank {origin.rank}" if origin.rank is not None else _several(origin.ranks)
    more = f", {alert.num_layers} layers" if alert.num_layers > 1 else ""
    end = f", over at step {alert.resolved_step}" if alert.resolved_step is not None else ""
    return f"{what} at step {origin.step} on {rank}{more}{end}"


def place(origin: Origin) -> str:
    """Return the name of the origin's layer, for a message."""
    return "a layer not known" if origin.layer is None else printable(origin.layer)


def comparison(origin: Origin) -> str:
    """Return how the origin's value compares with the limit it broke, for a message."""
    if origin.threshold is None:
        return f"{origin.value:.3g}"
    sign = ">" if origin.value > origin.threshold else "<"
    return f"{origin.value:.3g} {sign} {origin.threshold:g}"


def _several(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return "a rank that cannot be known"
    return "ranks " + ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
