"""Budgets: how much of each thing peers may take, why, and what happens at the limit.

Each is something that peers can make grow, and what is beyond it is taken from the one who spends
it. Settings, metrics and documentation follow from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from gradwatch_server.budget import KIB, MIB, UNLIMITED, Budget
from gradwatch_server.budget import field as _budget
from gradwatch_wire.limits import MAX_IN_FLIGHT_BYTES

TABLE: Final = "<!-- The table of budgets, written by scripts/docs. -->\n"
"""Where the table stands in docs/operations.md."""


class LoggedBudgets(BaseModel):
    """Those that the core acts on: alerts may depend on them, so they are facts of the log.

    A budget that is declared here is written to the log at a start that changes it, and is what
    `State.budgets` says from there on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    open_frames_bytes_per_attempt: int = _budget(
        64 * MIB,
        "bytes",
        "attempt",
        "Records of steps that wait for other ranks; as much again for each 1,024 ranks that live.",
        why="30 records of the largest size, or 2 steps of 1,024 ranks with 300 layers",
        at_limit="its oldest step closes early, without the ranks that are missing: its coverage "
        "says so",
        least=2 * MIB,
    )
    manifests_bytes_per_session: int = _budget(
        32 * MIB,
        "bytes",
        "session",
        "What the manifests of one session say of its layers.",
        why="100 sets of 10,000 layers in shards; a client remembers 64",
        at_limit="its oldest manifest is dropped: records of it count as unresolved",
        least=4 * MIB,
    )
    layers_bytes_per_attempt: int = _budget(
        32 * MIB,
        "bytes",
        "attempt",
        "Names and groups of all layers that were ever declared in it.",
        why="32,768 layers, the most there can be, with the longest names and in 6 groups each",
        at_limit="a manifest with further layers is not taken: its records count as unresolved; "
        "layers in further groups are watched without them",
        least=1 * MIB,
    )
    alert_events: int = _budget(
        200,
        "count",
        "run",
        "Alert events that a run may have at once.",
        why="a fault in every one of 64 groups, three times over",
        at_limit="the alert stays as it is, and counts how often it was over and back; a quarter "
        "is kept for what is a warning or critical, an eighth for the latter, and the first "
        "critical one of a rule in an attempt is told in any case",
        least=16,
    )
    alert_events_per_min: int = _budget(
        60,
        "per min",
        "run",
        "Alert events that a run may have beyond those, for ever.",
        why="nobody reads more than one a second",
        at_limit="as with `alert_events`",
    )
    alert_body_bytes: int = _budget(
        16 * KIB,
        "bytes",
        "run",
        "One alert as it is stored and told.",
        why="its message is at most 4 KiB",
        at_limit="fewer names are in it, and shorter ones; how many there are is told",
        least=12 * KIB,
        most=1 * MIB,
    )

    @classmethod
    def from_log(cls, plain: Mapping[str, Any]) -> LoggedBudgets:
        """Return budgets as another version may have written them into the log.

        What it does not say was not limited then; what is not known here is left out.
        """
        given = {name: plain.get(name) for name in cls.model_fields}
        known = {name: own for name, own in given.items() if isinstance(own, int | float)}
        values: dict[str, Any] = dict.fromkeys(given, UNLIMITED) | known
        return LoggedBudgets.model_construct(**values)


class Budgets(LoggedBudgets):
    """All budgets, with what they are set to."""

    # Runs, sessions and attempts
    runs: int = _budget(
        1_000,
        "count",
        "all",
        "Runs in memory.",
        why="an empty one takes some 33 kB",
        at_limit="the least useful is forgotten: without a record, ended without a frame, ended "
        "longest ago, without a frame yet; if all live and have frames, a new one is refused",
    )
    runs_per_client: int = _budget(
        250,
        "count",
        "client",
        "Runs in memory that sessions of one key opened; without keys nobody can be told apart.",
        why="a quarter of all",
        at_limit="the least useful of this client's runs is forgotten, as with `runs`",
    )
    sessions_bytes: int = _budget(
        128 * MIB,
        "bytes",
        "all",
        "Sessions in memory: what HELLO says, and what is kept beside it.",
        why="a usual one takes 4 kB, the largest 35 kB, one that begins an attempt 15 kB more: "
        "room for 30,000 ranks",
        at_limit="attempts go that ended without a record, then others as with `runs`; if all "
        "live, a new session is refused",
        least=64 * KIB,
    )
    sessions_bytes_per_client: int = _budget(
        64 * MIB,
        "bytes",
        "client",
        "Sessions in memory that one key opened; without keys nobody can be told apart.",
        why="half of all",
        at_limit="as with `sessions_bytes`, among this client's runs",
        least=64 * KIB,
    )
    attempts: int = _budget(
        64,
        "count",
        "run",
        "Attempts of a run in memory.",
        why="each answer about a run lists them",
        at_limit="the oldest that has ended is forgotten; its alert events stay; while the oldest "
        "lives a further one is refused",
        least=16,
    )
    attempts_per_min: int = _budget(
        60,
        "per min",
        "run",
        "Attempts that a run begins, all of a minute's at once if it likes.",
        why="a job that crashes at once begins one every few seconds",
        at_limit="HELLO is not answered until there is one to spare: the client asks again",
    )

    # What the core holds in all. Who has to go is decided once, and is a fact of the log.
    manifests_bytes: int = _budget(
        256 * MIB,
        "bytes",
        "all",
        "What manifests say of layers; ranks that have the same share it.",
        why="1,600 ranks with 5,000 layers in shards",
        at_limit="the oldest manifests go of the session that has most of them, in the attempt "
        "that has most: records of them count as unresolved",
        least=4 * MIB,
    )
    open_frames_bytes: int = _budget(
        256 * MIB,
        "bytes",
        "all",
        "Records of steps that wait for other ranks.",
        why="four attempts at their limit",
        at_limit="the oldest steps close early of the attempt that has most by its ranks: their "
        "coverage says so",
        least=4 * MIB,
    )

    # What is kept of a run
    window_bytes: int = _budget(
        256 * MIB,
        "bytes",
        "all",
        "Frames of rolling windows in memory, all columns of all layers.",
        why="512 frames of 300 layers take 7.4 MB",
        at_limit="frames leave memory once they are saved: those of attempts that ended, the one "
        "not heard of for the longest time first, then the oldest of the largest window; they are "
        "read where they are asked for",
        least=16 * MIB,
    )

    # The ingest port

    queue_bytes: int = _budget(
        64 * MIB,
        "bytes",
        "all",
        "Messages that were received and wait for their turn.",
        why="what a full disk, or peers that send faster than is taken in, may hold in memory",
        at_limit="the newest message of the connection that has most is dropped unacknowledged: "
        "its client sends it again",
        least=4 * MIB,
    )
    queue_bytes_per_peer: int = _budget(
        8 * MIB,
        "bytes",
        "peer",
        "Those of one connection.",
        why="as much as a client may have in flight",
        at_limit="what is above it is dropped unacknowledged: the client sends it again; who sends "
        "four times as much in vain within a second is disconnected",
        least=4 * MIB,
    )
    in_flight_bytes: int = _budget(
        MAX_IN_FLIGHT_BYTES,
        "bytes",
        "peer",
        "Records of a session that its client may send before they are acknowledged, not above "
        "`queue_bytes_per_peer`; WELCOME says so.",
        why="a usual record has 2 to 20 kB, and 256 of them are in flight at most",
        at_limit="the client waits",
        least=2 * MIB,
    )
    ingest_connections: int = _budget(
        4_096,
        "count",
        "all",
        "Connections to the ingest port, at most half of the files that may be open (ulimit -n).",
        why="four times the ranks of a large job",
        at_limit="the port takes no new connection until an eighth of them has gone, for 1 s at "
        "the least; clients try again by themselves",
        least=16,
    )

    # Time of the engine

    alert_copies: int = _budget(
        64,
        "count",
        "all",
        "Alerts that are sent at once to ranks other than 0 and those that they are about.",
        why="one takes 20 µs",
        at_limit="the other ranks are told in the next rounds",
    )

    publish_share: float = _budget(
        0.1,
        "share",
        "all",
        "Time of the engine that snapshots for readers may take.",
        why="they are made of all ranks of a run",
        at_limit="they are made less often than every 50 ms",
        least=0.01,
        most=1.0,
    )

    # HTTP
    http_connections: int = _budget(
        512,
        "count",
        "all",
        "Connections to HTTP, at most a quarter of the files that may be open (ulimit -n).",
        why="twice the streams",
        at_limit="the connection that is idle longest is closed",
        least=16,
    )
    header_s: float = _budget(
        10.0,
        "s",
        "address",
        "Time in which the header of a request has to be there, the first one from the connection.",
        why="a caller far away needs one",
        at_limit="it is answered 408, and the connection closed",
        least=0.1,
        most=3_600.0,
    )
    body_s: float = _budget(
        30.0,
        "s",
        "address",
        "Time in which the body of a request has to be there.",
        why="a body is at most 64 KiB",
        at_limit="it is answered 408, and the connection closed",
        least=0.1,
        most=3_600.0,
    )
    idle_s: float = _budget(
        30.0,
        "s",
        "address",
        "Time that a connection is kept without a further request.",
        why="who asks every few seconds keeps it",
        at_limit="the connection is closed",
        least=0.1,
        most=3_600.0,
    )
    streams: int = _budget(
        256,
        "count",
        "all",
        "Alert streams that are open, at most half of `http_connections`.",
        why="the other half is for requests",
        at_limit="of the address with most streams the one whose reader took nothing for the "
        "longest time is closed, else the oldest; its reader goes on where it was",
    )
    streams_per_caller: int = _budget(
        64,
        "count",
        "address",
        "Those of one address.",
        why="a quarter of all",
        at_limit="of its own streams the one whose reader took nothing for the longest time is "
        "closed, else the oldest; its reader goes on where it was",
    )
    stream_write_s: float = _budget(
        30.0,
        "s",
        "address",
        "Time in which the reader of a stream has to take what is sent.",
        why="a laptop that wakes up takes some seconds",
        at_limit="the stream is closed; its reader goes on where it was",
        least=0.1,
        most=3_600.0,
    )
    curve_reads: int = _budget(
        2,
        "count",
        "all",
        "Answers with curves, pictures, steps, layers or one alert that are read at once.",
        why="each takes a core while it is made, which ingest needs too",
        at_limit="others wait for their turn",
        most=64,
    )
    curve_reads_waiting: int = _budget(
        64,
        "count",
        "all",
        "Those that wait for it.",
        why="at some 30 ms each the last one waits for a second",
        at_limit="it is answered 503, with Retry-After",
    )
    answers_share: float = _budget(
        0.1,
        "share",
        "all",
        "Time of the HTTP thread that `/runs` and `/metrics` may take.",
        why="they are made of all runs",
        at_limit="they are made once for all who ask meanwhile",
        least=0.01,
        most=1.0,
    )

    metric_runs: int = _budget(
        50,
        "count",
        "all",
        "Runs with numbers of their own in `/metrics`.",
        why="each is some 35 time series, which Prometheus keeps for weeks",
        at_limit="those that live go before those that ended, then those heard of last; all others "
        "are in the sums, and `gradwatch_runs_left_out` says how many they are",
        least=0,
        most=10_000,
    )

    # The aggregator's own log
    log_lines: int = _budget(
        1,
        "count",
        "address",
        "Lines of one kind in the log about one caller of HTTP, a minute.",
        why="one is enough to see it",
        at_limit="they are counted, and told of once a minute",
    )
    log_lines_per_min: int = _budget(
        100,
        "per min",
        "all",
        "Lines in the log that callers of HTTP cause.",
        why="some 15 MB a day",
        at_limit="they are counted, and told of once a minute",
    )

    def logged(self) -> LoggedBudgets:
        """Return those that are facts of the log."""
        return LoggedBudgets(**self.model_dump(include=set(LoggedBudgets.model_fields)))


BUDGETS: Final = tuple(
    Budget.of(name, Budgets.model_fields[name], is_logged=name in LoggedBudgets.model_fields)
    for name in sorted(Budgets.model_fields, key=LoggedBudgets.model_fields.__contains__)
)
"""Every budget, in the order of the documentation."""


def table() -> str:
    """Return all budgets as a table in Markdown."""
    rows = [
        "| budget | default | of | what it is | why | at the limit |",
        "|---|---|---|---|---|---|",
    ]
    rows += [
        f"| `{own.name}` | {own.shown()} | {own.per} | {own.what} | {own.why} | {own.at_limit} |"
        for own in BUDGETS
    ]
    return "\n".join(rows) + "\n"
