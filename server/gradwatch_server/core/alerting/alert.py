"""An alert and its parts. Its words are in `sentences`."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from gradwatch_server.budgets import UNLIMITED
from gradwatch_server.core.alerting.fitting import MAX_RANKS, fitted
from gradwatch_server.core.alerting.hints import hints_for
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.wording import cut_bytes
from gradwatch_wire import Json
from gradwatch_wire.health import AlertState, Severity
from gradwatch_wire.limits import MAX_TEXT_BYTES

MAX_NAMED_LAYERS: Final = 20
"""Names of layers in an alert."""

MAX_SPREAD: Final = 16
"""Steps that an alert's spread has; of more the last one is the newest."""


class News(StrEnum):
    """Reason of an event of an alert that already fires."""

    SEVERITY = "severity"
    KIND = "kind"
    LAYERS = "layers"
    VALUE = "value"
    ACKNOWLEDGED = "acknowledged"
    SILENCE_ENDED = "silence_ended"


class ResolvedBy(StrEnum):
    """Why an alert is over."""

    CLEAR = "clear"
    FROZEN = "frozen"
    GONE = "gone"
    RULE_OFF = "rule_off"


@dataclass(frozen=True, slots=True)
class RelatedAlert:
    """A consequence that made an alert matter more.

    Args:
        rule: Name of the rule that found it.
        what: What that says of it.
    """

    rule: str
    what: str


@dataclass(frozen=True, slots=True)
class Update:
    """News of an alert that fired before.

    Args:
        number: Counts the updates of the alert, from 1: with its id it says which event this is.
        step: Step at which it was told.
        news: What is new.
        layers: Names of the layers that joined since the event before, at most 20.
        num_layers: How many joined.
        part: The consequence for which it is more severe, None if it is that by itself.
    """

    number: int
    step: int
    news: tuple[News, ...]
    layers: tuple[str, ...] = ()
    num_layers: int = 0
    part: RelatedAlert | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """Extent of an alert at a step at which layers or ranks joined it.

    Args:
        step: The step.
        num_layers: Layers that were bad in it so far; 0 of a rule about the run.
        num_ranks: Ranks that it showed on so far.
    """

    step: int
    num_layers: int
    num_ranks: int


@dataclass(frozen=True, slots=True)
class WorstValue:
    """The worst of an alert, where that is ten times what was told before.

    Args:
        step: Step at which it was seen.
        layer: Name of the layer, None where there is none.
        value: As `Origin.value`.
        rank: The one rank that it showed on, None if there are several.
        ranks: All of them.
    """

    step: int
    layer: str | None
    value: float
    rank: int | None
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Somebody knows of the alert.

    Args:
        by: Who.
        comment: What they say of it.
        at_ns: When, nanoseconds since the epoch.
    """

    by: str
    comment: str
    at_ns: int


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
        fired_ns: When it fired, nanoseconds since the epoch, 0 while pending.
        raised_step: Step at which its severity last rose while it fired, None if it never did.
        resolved_step: Step at which it was resolved, None before.
        last_step: Last bad step.
        origin: Where it began.
        layers: Names of the layers that were bad in it, at most 20: the origin's first, then in
            forward order; none of a rule that is about the run.
        num_layers: How many there are.
        updated_ns: When it last changed, nanoseconds since the epoch.
        message: All of it in one line.
        ranks: Ranks that it showed on so far.
        update: What was new at the last event, None if that was that it fired.
        worst: The worst that was told, None if that is the origin.
        resolved_by: Why it is over, None before.
        acknowledged: Who knows of it, None as long as nobody said so.
        silenced: Whether a silence keeps it from being told.
        spread: How it spread over layers and ranks, oldest first, at most 16 steps; of more the
            last is the newest.
        part_of: Id of the alert that it was a consequence of when it began, None if of none.
        num_flaps: How often it was over and bad again without any event of it, as the run had none
            to spare.
        body_bytes: How large it may be as JSON.
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
    ranks: tuple[int, ...] = ()
    update: Update | None = None
    worst: WorstValue | None = None
    resolved_by: ResolvedBy | None = None
    acknowledged: Acknowledgement | None = None
    silenced: bool = False
    part_of: str | None = None
    fired_ns: int = 0
    spread: tuple[Spread, ...] = ()
    num_flaps: int = 0
    body_bytes: int = UNLIMITED

    @property
    def change(self) -> str:
        """Name of its latest event; no two events of one alert have the same."""
        if self.state is not AlertState.FIRING or self.update is None:
            return str(self.state)
        # It rises to each once. Stores have events of that name, which must not be told again.
        rose = News.SEVERITY in self.update.news
        return f"{self.state}:{self.severity if rose else self.update.number}"

    def to_dict(self) -> dict[str, Json]:
        """Return plain data, floats as they are: `jsonable` makes it JSON.

        It fits the wire and `body_bytes`, by naming less and never by saying something else.
        """
        plain = self._plain()
        del plain["body_bytes"]
        # Nanoseconds since the epoch are beyond what JSON readers keep exactly.
        for name in ("fired", "updated"):
            time_ns = plain.pop(f"{name}_ns")
            plain[f"{name}_at"] = isotime(time_ns) if time_ns else None
        origin = plain["origin"]
        origin["before"] = [{"step": step, "l2": l2} for step, l2 in self.origin.before]
        origin["magnitudes_before"] = [
            {"step": step, "magnitude": magnitude}
            for step, magnitude in self.origin.magnitudes_before
        ]
        for fields in (plain, origin, plain["worst"]):
            if fields is not None:
                fields["num_ranks"], fields["ranks"] = (
                    len(fields["ranks"]),
                    fields["ranks"][:MAX_RANKS],
                )
        if self.acknowledged is not None:
            comment = cut_bytes(self.acknowledged.comment, MAX_TEXT_BYTES)
            at = isotime(self.acknowledged.at_ns)
            plain["acknowledged"] = {"by": self.acknowledged.by, "comment": comment, "at": at}
        plain["hints"] = list(hints_for(self.rule))
        return fitted(plain, self.body_bytes)

    def _plain(self) -> dict[str, Any]:
        # Not `asdict`, which copies each of what may be 65,536 ranks.
        plain = _fields_of(self)
        plain["origin"] = _fields_of(self.origin)
        plain["worst"] = None if self.worst is None else _fields_of(self.worst)
        plain["update"] = None if self.update is None else asdict(self.update)
        plain["acknowledged"] = None if self.acknowledged is None else asdict(self.acknowledged)
        plain["spread"] = tuple(_fields_of(spread) for spread in self.spread)
        return plain


def _fields_of(facts: Alert | Origin | WorstValue | Spread) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in facts.__slots__}


def isotime(time_ns: int) -> str:
    """Return a UTC time in ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="milliseconds")


def alert_id(run: str, attempt: int, rule: str, group: str, first_step: int) -> str:
    """Return the id that this alert has whenever it is derived again."""
    text = "\0".join((run, str(attempt), rule, group, str(first_step)))
    return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()
