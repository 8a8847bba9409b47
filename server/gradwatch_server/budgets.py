"""Budgets: how much of each thing peers may take, why, and what happens at the limit.

Each is something that peers can make grow, and what is beyond it is taken from the one who spends
it. Settings, metrics and documentation follow from this table.
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

    # Time of the engine

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
