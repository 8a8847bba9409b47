"""Budgets of HTTP, and of the lines in the log that its callers cause."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from gradwatch_server.budget import field as _budget


class HttpBudgets(BaseModel):
    """Budgets of callers of HTTP."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    http_connections: int = _budget(
        512,
        "count",
        "all",
        "Connections to HTTP, at most a quarter of the files that may be open (ulimit -n).",
        why="twice the streams",
        at_limit="a further one is answered 503 and closed",
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
    write_s: float = _budget(
        30.0,
        "s",
        "address",
        "Time in which a caller has to take some of an answer that waits for it.",
        why="a laptop that wakes up takes some seconds",
        at_limit="the connection is closed; the reader of a stream goes on where it was",
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
