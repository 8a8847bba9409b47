"""Entries of a run's log: records as they came, and what the aggregator itself learnt.

The state of a run follows from nothing else, so whatever it depends on must be one of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gradwatch_server.core.alerting.silences import Silence
from gradwatch_wire import Envelope, Hello
from gradwatch_wire.value import value


@dataclass(frozen=True, slots=True)
class Opened:
    """A session said HELLO for the first time."""

    session: bytes
    hello: Hello


@value()
class Received:
    """A sequenced record of a session, in the order of its sequence numbers."""

    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Gap:
    """Records `first..last` of a session are lost: the client can no longer supply them."""

    session: bytes
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A session gave no sign of life for the session timeout and did not say BYE."""

    session: bytes


@dataclass(frozen=True, slots=True)
class BeatProgress:
    """Content of a BEAT of a session.

    Args:
        last_step: The last step that it collected, -1 before the first.
        training: Whether the model is in training mode; None if it does not say.
    """

    session: bytes
    last_step: int
    since_s: float
    training: bool | None = None


@dataclass(frozen=True, slots=True)
class Beats:
    """Sessions that sent no record for some seconds are alive, and this is how far they are.

    Written about once a second for all of a run together, each every few seconds.
    """

    progress: tuple[BeatProgress, ...]


@dataclass(frozen=True, slots=True)
class Resumed:
    """The aggregator takes in messages again, having been away: started anew, or held up.

    What it waits for it waits for anew: nobody could reach it.
    """


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. Written once a second while a frame waits for a rank, or a rank is not heard."""


@dataclass(frozen=True, slots=True)
class Began:
    """A run begins: the first entry of its log, and of each time that its name comes back.

    Args:
        attempts: Attempts that it had before it was forgotten: their numbers are not given again,
            and so no id of their alerts is.
        rules: The rules in force, JSON of `rules.Rules`.
        budgets: The budgets in force, JSON of `budgets.LoggedBudgets`.
        silences: The silences in force that may fit it, as plain data of `Silence`.
    """

    attempts: int
    rules: str
    budgets: str
    silences: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class RulesSet:
    """The rules in force from here on, JSON of `rules.Rules`."""

    rules: str


@dataclass(frozen=True, slots=True)
class BudgetsSet:
    """Budgets in force from here on, JSON of `budgets.LoggedBudgets`."""

    budgets: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The attempts of a run up to *attempts* ended long ago and leave memory."""

    run: str
    attempts: int


@dataclass(frozen=True, slots=True)
class FramesClosed:
    """All that waits for other ranks takes too much: the oldest steps of one attempt close.

    Which attempt that is depends on all runs. So it is decided once, and is a fact of the log.

    Args:
        limit: Bytes that its records that wait may take from here on.
    """

    run: str
    attempt: int
    limit: int


@dataclass(frozen=True, slots=True)
class ManifestsDropped:
    """All manifests take too much: the oldest ones of one session are dropped.

    Args:
        limit: Bytes that its manifests may take from here on.
    """

    session: bytes
    limit: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Somebody knows of an alert that fires."""

    run: str
    attempt: int
    alert_id: str
    by: str
    comment: str


@dataclass(frozen=True, slots=True)
class SilenceAdded:
    """Alerts that fit are not told from here on, until it ends."""

    silence: Silence


@dataclass(frozen=True, slots=True)
class SilenceRemoved:
    """A silence ends before its time."""

    silence_id: str


Request: TypeAlias = Acknowledged | SilenceAdded | SilenceRemoved
"""Requests of people to the aggregator."""

Body: TypeAlias = (
    Opened
    | Received
    | Gap
    | Lost
    | Beats
    | Resumed
    | Tick
    | Began
    | RulesSet
    | BudgetsSet
    | Forgotten
    | FramesClosed
    | ManifestsDropped
    | Request
)


@value()
class Entry:
    """One line of the log of a run.

    Args:
        received_ns: The aggregator's wall clock when it came in, nanoseconds since the epoch.
    """

    received_ns: int
    body: Body
