"""Budgets: how much of each thing peers may take, why, and what happens at the limit.

Whatever a peer can make grow is bounded here, and what is beyond the bound is taken from the one
who spends it. Settings, metrics and documentation follow from this table.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

from gradwatch_server.budget import KIB, MIB, Budget
from gradwatch_server.budget import field as _budget

TABLE: Final = "<!-- The table of budgets, written by scripts/docs. -->\n"
"""Where the table stands in docs/operations.md."""


class Budgets(BaseModel):
    """All budgets, with what they are set to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        at_limit="the oldest that has ended is forgotten; its alert events stay",
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

    # What the core keeps of a run
    manifests_bytes: int = _budget(
        256 * MIB,
        "bytes",
        "all",
        "Names and shapes of layers that sessions declared.",
        why="a record is at most 2 MiB",
        at_limit="the oldest manifest of the session that has most is dropped: its records count "
        "as unresolved",
        least=4 * MIB,
        is_logged=True,
    )
    manifests_bytes_per_session: int = _budget(
        32 * MIB,
        "bytes",
        "session",
        "Those of one session.",
        why="16 manifests of the largest size",
        at_limit="its oldest manifest is dropped: its records count as unresolved",
        least=2 * MIB,
        is_logged=True,
    )
    open_frames_bytes: int = _budget(
        256 * MIB,
        "bytes",
        "all",
        "Records of frames that wait for other ranks.",
        why="four attempts at their limit",
        at_limit="the oldest frame of the attempt that has most closes early: its coverage says so",
        least=4 * MIB,
        is_logged=True,
    )
    open_frames_bytes_per_attempt: int = _budget(
        64 * MIB,
        "bytes",
        "attempt",
        "Those of one attempt.",
        why="30 records of the largest size",
        at_limit="its oldest frame closes early: its coverage says so",
        least=2 * MIB,
        is_logged=True,
    )
    window_bytes: int = _budget(
        256 * MIB,
        "bytes",
        "all",
        "Rolling windows in memory.",
        why="512 frames of 300 layers take 7.4 MB",
        at_limit="windows of attempts that ended leave memory, the one unused longest first; they "
        "are on the disk, and come back when they are asked for",
        least=16 * MIB,
    )
    alert_events: int = _budget(
        200,
        "count",
        "run",
        "Alert events that a run may have at once.",
        why="one for each alert that a run is shown with, twice over",
        at_limit="the alert stays as it is, and counts how often it changed",
        least=16,
        is_logged=True,
    )
    alert_events_per_min: int = _budget(
        60,
        "per min",
        "run",
        "Alert events that a run may have beyond those, for ever.",
        why="nobody reads more than one a second",
        at_limit="the alert stays as it is, and counts how often it changed",
        is_logged=True,
    )
    alert_body_bytes: int = _budget(
        16 * KIB,
        "bytes",
        "run",
        "One alert as it is stored and told.",
        why="its message is at most 4 KiB",
        at_limit="names of layers in it are cut",
        least=8 * KIB,
        most=1 * MIB,
        is_logged=True,
    )

    # The ingest port
    queue_bytes: int = _budget(
        64 * MIB,
        "bytes",
        "all",
        "Messages that were received and wait for their turn.",
        why="what a full disk or a greedy peer may hold back in memory",
        at_limit="what is above it is dropped unacknowledged: the client sends it again",
        least=4 * MIB,
    )
    queue_bytes_per_peer: int = _budget(
        4 * MIB,
        "bytes",
        "peer",
        "Those of one connection.",
        why="two messages of the largest size",
        at_limit="what is above it is dropped unacknowledged: the client sends it again",
        least=2 * MIB,
    )
    in_flight_bytes: int = _budget(
        8 * MIB,
        "bytes",
        "session",
        "Records that a client may send before they are acknowledged; WELCOME says so.",
        why="a usual one is 2 to 20 kB",
        at_limit="the client waits",
        least=2 * MIB,
    )
    work_share: float = _budget(
        0.5,
        "share",
        "peer",
        "Time of the engine that one connection may take while others wait.",
        why="another one gets the other half",
        at_limit="its messages wait for those of others",
        least=0.01,
        most=1.0,
    )
    ingest_connections: int = _budget(
        4_096,
        "count",
        "all",
        "Connections to the ingest port, at most half of the files that may be open (ulimit -n).",
        why="four times the ranks of a large job",
        at_limit="the port takes no new connection until there is room",
        least=16,
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


BUDGETS: Final = tuple(Budget.of(name, field) for name, field in Budgets.model_fields.items())
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
