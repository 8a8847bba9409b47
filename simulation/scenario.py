"""What one seed decides beforehand: who takes part, and what goes wrong how often."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from gradwatch_server.core.frames.assembler import MAX_HELD_RECORDS
from gradwatch_server.ingest.inbox import BATCH_MESSAGES
from gradwatch_server.storage.checkpointer import MAX_TAIL
from gradwatch_wire.session.timing import MAX_IN_FLIGHT

SECOND_NS: Final = 1_000_000_000

RUN: Final = "gpt"
"""The name of the run that is honest."""

KINDS: Final = ("names", "attempts", "wide", "descending", "flapping", "manifests")
"""Of greedy peers: what each makes grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One cluster and its faults. Chances are per tick, and per worker where it is about one.

    Args:
        world: Ranks of the run.
        steps: Steps that each rank takes.
        warm_steps: Those of them, the first, in which all numbers are as usual.
        people: Chance that somebody acknowledges the alerts that fire, or adds or ends a silence.
        mood: Where in the sequence of good and bad numbers they begin.
        step_s: Mean time between two of them, seconds.
        tick_s: Largest time that passes between two looks at everything, seconds.
        buffer_bytes: Budget of each worker's send buffer.
        spill: Segments of a worker's spill files, 0 for none.
        in_flight: Records that a worker sends without an acknowledgement.
        batch: Messages that the aggregator takes at once.
        max_held: Records in open frames from which on these are closed.
        hwm: Messages that one direction of a connection holds.
        delay_s: Largest delay of a message, seconds.
        session_timeout_s: After which silent sessions are given up, seconds.
        crash_points: Mean number of points passed at which the aggregator may be killed until it
            is; 0 for never.
        outage_s: Largest time until it is started again, seconds.
        restart: Chance that it is stopped cleanly and started again.
        checkpoint_s: Time between two checkpoints, seconds.
        tail: Entries after which a checkpoint is made earlier.
        log_age_s: Age from which on the log is trimmed, seconds.
        amnesia: Chance that it then starts with an empty data directory.
        relapse: Chance that it then starts with an older copy of it.
        cut: Chance that a connection breaks.
        half_open: Chance that one direction of a connection swallows everything.
        partition: Chance that a worker cannot reach the aggregator for a while.
        duplicate: Chance that a new connection delivers the end of the old one again.
        disk_full: Chance that the disk fills up for a while.
        slow_sync: Chance that a commit takes seconds.
        freeze: Chance that the aggregator is stopped for up to 30 s, and then continues.
        kill: Chance that a worker is killed.
        clock_jump: Chance that somebody sets the clock an hour forward or back.
        greedy: What a peer takes too much of beside them, empty for none.
        late: Chance that a process of a job from before attaches only now, for a while.
    """

    world: int
    steps: int
    warm_steps: int
    people: float
    mood: int
    step_s: float
    tick_s: float
    buffer_bytes: int
    spill: int
    in_flight: int
    batch: int
    max_held: int
    hwm: int
    delay_s: float
    session_timeout_s: float
    crash_points: int
    outage_s: float
    restart: float
    checkpoint_s: float
    tail: int
    log_age_s: float
    amnesia: float
    relapse: float
    cut: float
    half_open: float
    partition: float
    duplicate: float
    disk_full: float
    slow_sync: float
    freeze: float
    kill: float
    clock_jump: float
    late: float
    greedy: str

    @property
    def queue_bytes(self) -> int:
        """What may wait in the aggregator of one connection: three records, or more."""
        return 3_000 * self.hwm // 2


def draw(random: Random) -> Scenario:
    """Draw a scenario: each fault is absent from some, so that the others get their turn alone."""

    def chance(*of: float) -> float:
        return random.choice((0.0, *of))

    return Scenario(
        world=random.choice((1, 1, 2, 2, 3, 4)),
        steps=random.choice((8, 15, 25)),
        warm_steps=0,
        people=0.0,
        mood=random.randrange(21),
        step_s=random.choice((0.05, 0.3, 1.0)),
        tick_s=random.choice((0.1, 0.5, 1.0)),
        buffer_bytes=random.choice((500, 900, 2_000, 1 << 20, 1 << 20)),
        spill=random.choice((0, 0, 2, 8)),
        in_flight=random.choice((3, 20, MAX_IN_FLIGHT)),
        batch=random.choice((3, BATCH_MESSAGES)),
        max_held=random.choice((8, MAX_HELD_RECORDS)),
        hwm=random.choice((2, 5, 100)),
        delay_s=random.choice((0.0, 0.05, 1.5)),
        session_timeout_s=random.choice((5.0, 15.0)),
        crash_points=random.choice((0, 20, 60, 200)),
        outage_s=random.choice((0.5, 5.0, 20.0)),
        restart=chance(0.01),
        checkpoint_s=random.choice((1.0, 5.0, 60.0)),
        tail=random.choice((5, 50, MAX_TAIL)),
        log_age_s=random.choice((2.0, 7 * 86_400.0)),
        amnesia=chance(0.0, 0.0, 0.2, 0.6),
        relapse=chance(0.0, 0.2),
        cut=chance(0.01, 0.05),
        half_open=chance(0.01, 0.03),
        partition=chance(0.005, 0.02),
        duplicate=chance(0.5),
        disk_full=chance(0.01),
        slow_sync=chance(0.02),
        freeze=chance(0.01),
        kill=chance(0.002, 0.01),
        clock_jump=chance(0.01),
        late=chance(0.02, 0.1),
        greedy=random.choice(("",) * 2 * len(KINDS) + KINDS),
    )


def draw_long(random: Random) -> Scenario:
    """Draw one in which it is known what is usual before anything happens to the numbers.

    Its faults are rarer, so that it gets that far, and people ask things of the aggregator.
    """
    drawn = draw(random)
    return replace(
        drawn,
        world=min(drawn.world, 2),
        steps=120,
        warm_steps=45,
        people=0.1,
        step_s=0.3,
        tick_s=1.0,
        buffer_bytes=1 << 20,
        kill=drawn.kill / 10,
        amnesia=0.0,
        relapse=0.0,
        greedy="",
        log_age_s=7 * 86_400.0,
    )
