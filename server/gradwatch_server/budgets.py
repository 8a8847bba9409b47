"""Budgets: one for each thing that peers can make grow, with its default, reason and use.

Settings, metrics and documentation follow from the fields of `Budgets`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from gradwatch_wire.limits import MAX_IN_FLIGHT_BYTES

Unit = Literal["bytes", "s", "count", "per min"]
Per = Literal["all", "client", "peer", "address", "run"]

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

UNLIMITED: Final = 1 << 50
"""A limit that nothing reaches."""


def _budget(
    default: float,
    unit: Unit,
    per: Per,
    description: str,
    *,
    reason: str,
    at_limit: str,
    minimum: float = 1,
    maximum: float = UNLIMITED,
) -> Any:
    """Declare a budget; the arguments are those of `Budget`, and the bounds of the setting."""
    return Field(
        default,
        ge=minimum,
        le=maximum,
        allow_inf_nan=False,
        description=description,
        json_schema_extra={"unit": unit, "per": per, "reason": reason, "at_limit": at_limit},
    )


class LoggedBudgets(BaseModel):
    """Budgets of one run that the core applies. Alerts may depend on them: the log has them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_bytes: int = _budget(
        512 * MIB,
        "bytes",
        "run",
        "Memory of a run: three eighths of it for steps that wait for other ranks, three for "
        "layers and all that is known of them, one for manifests, one for sessions.",
        reason="one step of 12,000 ranks with 300 layers; 32,768 layers, the most there can be; "
        "400 ranks with 5,000 layers in shards; 12,000 sessions",
        at_limit="the oldest steps close early, and their coverage says so; the oldest manifests "
        "are dropped, and a manifest with too many new layers is not taken: their records count as "
        "unresolved; attempts that ended are forgotten, and a further session is refused",
        minimum=16 * MIB,
    )
    alert_events_per_min: int = _budget(
        60,
        "per min",
        "run",
        "Alert events of a run beyond the first 200.",
        reason="nobody reads more than one a second",
        at_limit="the alert stays as it is, and counts how often it was over and back; a quarter "
        "of the 200 is kept for warnings and critical alerts, an eighth for critical ones, and the "
        "first critical event of a rule in an attempt is told in any case",
    )
    alert_bytes: int = _budget(
        16 * KIB,
        "bytes",
        "run",
        "One alert as it is stored and told.",
        reason="its message is at most 4 KiB",
        at_limit="fewer names are in it, and shorter ones; their number is told",
        minimum=12 * KIB,
        maximum=1 * MIB,
    )

    @property
    def open_frames_bytes(self) -> int:
        """Share of steps that wait for other ranks."""
        return 3 * self.run_bytes // 8

    @property
    def manifests_bytes(self) -> int:
        return self.run_bytes // 8

    @property
    def sessions_bytes(self) -> int:
        return self.run_bytes // 8

    @property
    def layers_bytes(self) -> int:
        """Share of layers: their names, groups and baselines."""
        return 3 * self.run_bytes // 8

    @classmethod
    def unlimited(cls) -> LoggedBudgets:
        """Return the budgets of a log that has none yet."""
        values: dict[str, Any] = dict.fromkeys(LoggedBudgets.model_fields, UNLIMITED)
        return LoggedBudgets.model_construct(**values)


class Budgets(LoggedBudgets):
    """All budgets."""

    runs: int = _budget(
        1_000,
        "count",
        "all",
        "Runs in memory.",
        reason="an empty one takes some 33 kB",
        at_limit="a run is forgotten: one that never sent a record, else one that ended without a "
        "frame, else the one that ended longest ago; where none may go, a new run is refused",
    )
    runs_per_client: int = _budget(
        250,
        "count",
        "client",
        "Runs in memory that sessions of one key opened; without keys nobody can be told apart.",
        reason="a quarter of all",
        at_limit="a run of this client is forgotten, as with `runs`",
    )
    total_bytes: int = _budget(
        1 * GIB,
        "bytes",
        "all",
        "Memory of all runs together, shared as `run_bytes` is.",
        reason="two runs at their limit",
        at_limit="the run with most steps that wait closes the oldest early, the session with most "
        "manifests loses its oldest, and runs are forgotten as with `runs`; where none may go, a "
        "new session is refused",
        minimum=16 * MIB,
    )
    attempts_per_min: int = _budget(
        60,
        "per min",
        "run",
        "Attempts that a run begins, all of a minute's at once if it likes.",
        reason="a job that crashes at once begins one every few seconds",
        at_limit="HELLO is not answered until there is one to spare: the client asks again",
    )
    queue_bytes: int = _budget(
        64 * MIB,
        "bytes",
        "all",
        "Messages that were received and wait for their turn. Seven eighths of it are granted to "
        "sessions as windows in bytes.",
        reason="messages pile up while a disk is full, or peers send faster than is taken in",
        at_limit="clients wait for a wider window, the longest waiting is served first; what comes "
        "beyond a window is dropped unacknowledged, and who goes on is disconnected",
        minimum=32 * MIB,
    )
    in_flight_bytes: int = _budget(
        MAX_IN_FLIGHT_BYTES,
        "bytes",
        "peer",
        "Records that a client without windows may send before they are acknowledged, not above "
        "an eighth of `queue_bytes`; WELCOME says so.",
        reason="a usual record has 2 to 20 kB, and 256 of them are in flight at most",
        at_limit="the client waits",
        minimum=2 * MIB,
    )
    ingest_connections: int = _budget(
        4_096,
        "count",
        "all",
        "Connections to the ingest port, at most half of the files that may be open (ulimit -n).",
        reason="four times the ranks of a large job",
        at_limit="the port takes no new connection until an eighth of them has gone, for 1 s at "
        "the least; clients try again by themselves",
        minimum=16,
    )
    http_connections: int = _budget(
        512,
        "count",
        "all",
        "Connections to HTTP, at most a quarter of the files that may be open (ulimit -n); half of "
        "them may be alert streams.",
        reason="256 streams, and as many requests",
        at_limit="a further one is answered 503 and closed; of streams, that of the address with "
        "most is closed whose reader took nothing for the longest time",
        minimum=16,
    )
    http_wait_s: float = _budget(
        15.0,
        "s",
        "address",
        "Time that a caller of HTTP may keep a connection waiting: for the header of a request, "
        "for its body, for the next request, or to take some of an answer.",
        reason="a caller far away needs one; a laptop that wakes up takes some seconds",
        at_limit="a request that is not whole is answered 408; the connection is closed, and the "
        "reader of a stream goes on where it was",
        minimum=0.1,
        maximum=3_600.0,
    )
    streams_per_caller: int = _budget(
        64,
        "count",
        "address",
        "Alert streams of one address.",
        reason="a quarter of all",
        at_limit="of its own streams the one whose reader took nothing for the longest time is "
        "closed, else the oldest; its reader goes on where it was",
    )
    log_lines_per_min: int = _budget(
        100,
        "per min",
        "all",
        "Lines in the aggregator's own log that callers of HTTP cause, one of a kind for each.",
        reason="some 15 MB a day",
        at_limit="they are counted, and told of once a minute",
    )

    def logged(self) -> LoggedBudgets:
        names = LoggedBudgets.model_fields
        return LoggedBudgets.model_construct(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True)
class Budget:
    """One line of the table of budgets.

    Args:
        name: Name of the setting.
        default: Amount that may be used.
        unit: Unit of the amount.
        per: Owner of the use: `all` peers together; a `client`, which has a key of its own; a
            `peer`, one connection to the ingest port; an `address` of a caller of HTTP; a `run`.
        description: Meaning.
        reason: Reason of the default.
        at_limit: Consequence at the limit.
    """

    name: str
    default: float
    unit: Unit
    per: Per
    description: str
    reason: str
    at_limit: str

    @classmethod
    def of(cls, name: str, setting: FieldInfo) -> Self:
        """Return the budget that `_budget` declared under a name."""
        extra = cast("dict[str, Any]", setting.json_schema_extra)
        return cls(name, setting.default, description=setting.description or "", **extra)


BUDGETS: Final = tuple(
    Budget.of(name, Budgets.model_fields[name])
    for name in sorted(Budgets.model_fields, key=LoggedBudgets.model_fields.__contains__)
)
"""Every budget, in the order of the documentation: those of a run last."""


@dataclass(slots=True)
class Use:
    """Use of one budget. Only the thread that enforces the budget writes it.

    Args:
        used: Amount; of a budget by peer or run, the largest; None before it is known.
        num_evicted: Things that went to make room, since the start.
        num_refused: Things that were refused or had to wait, since the start.
    """

    used: float | None = None
    num_evicted: int = 0
    num_refused: int = 0


class BudgetUse:
    """The limits in force and the use of each; any thread may read them."""

    def __init__(self, limits: Budgets | None = None) -> None:
        self.limits = limits or Budgets()
        self._of = {budget.name: Use() for budget in BUDGETS}

    def __getitem__(self, name: str) -> Use:
        return self._of[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def limit(self, name: str) -> float:
        return cast("float", getattr(self.limits, name))
