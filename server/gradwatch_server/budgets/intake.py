"""Budgets of what is taken in: memory, the ingest port, the time of the engine."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from gradwatch_server.budget import KIB, MIB
from gradwatch_server.budget import field as _budget
from gradwatch_wire.limits import MAX_IN_FLIGHT_BYTES


class IntakeBudgets(BaseModel):
    """Limits of the clients that send records."""

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
