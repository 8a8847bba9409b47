"""What one seed decides beforehand of several nodes, and of what goes wrong between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from simulation.scenario import Scenario
from simulation.scenario import draw as draw_job


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesScenario:
    """One cluster and its faults. Chances are per tick, and per node where it is about one.

    Args:
        job: What each run is, and what befalls its processes.
        runs: How many runs there are.
        nodes: How many nodes there are.
        partitions: How many partitions the runs are on.
        lease_s: How long a node's lease lasts that is not renewed, seconds.
        points: Mean number of points passed by a node until it is killed or paused; 0 for never.
        pauses: Share of these that are pauses.
        pause_s: Longest pause, seconds.
        outage_s: Largest time until a killed node is started again, seconds.
        leave: Chance that a node is stopped cleanly.
        skew_s: How far a node's clock may be off, seconds.
        cut: Chance that a node loses NATS for a while.
        ledger_cut: Chance that it loses the ledger for a while.
        pair_cut: Chance that two nodes lose each other's messages for a while.
        leader: Chance that the stream and the buckets lose their leader for a while.
        buckets: Chance that the buckets alone do.
        away: Chance that the ledger is away for a while.
        cut_s: The longest of these whiles, seconds.
        unanswered: Chance that an append gets no answer: it is lost, written, or written later.
        uncertain: Chance that a transaction of the ledger is committed, and its answer lost.
        lose: Chance that a message between two nodes is lost.
        repeat: Chance that it comes again later.
        delay_s: Largest delay of one, seconds.
        move: Chance that a worker goes to another node, per worker.
        forget: Chance that the bucket of owners is lost, or an older copy is put in its place.
    """

    job: Scenario
    runs: int
    nodes: int
    partitions: int
    lease_s: float
    points: int
    pauses: float
    pause_s: float
    outage_s: float
    leave: float
    skew_s: float
    cut: float
    ledger_cut: float
    pair_cut: float
    leader: float
    away: float
    cut_s: float
    unanswered: float
    uncertain: float
    lose: float
    repeat: float
    delay_s: float
    move: float
    forget: float = 0.0
    buckets: float = 0.0


def draw(random: Random) -> NodesScenario:
    """Draw a scenario: each fault is absent from some, so that the others get their turn alone."""

    def chance(*of: float) -> float:
        return random.choice((0.0, *of))

    return NodesScenario(
        job=_draw_job(random),
        runs=random.choice((1, 2, 3)),
        nodes=random.choice((2, 3, 3)),
        partitions=random.choice((1, 2, 4)),
        lease_s=random.choice((2.0, 5.0)),
        points=random.choice((0, 100, 300, 1_000)),
        pauses=random.choice((0.0, 0.5, 1.0)),
        pause_s=random.choice((2.0, 15.0)),
        outage_s=random.choice((0.5, 5.0, 20.0)),
        leave=chance(0.005),
        skew_s=random.choice((0.0, 0.0, 10.0, 3_600.0)),
        cut=chance(0.005, 0.02),
        ledger_cut=chance(0.005, 0.02),
        pair_cut=chance(0.01),
        leader=chance(0.005, 0.02),
        away=chance(0.005),
        cut_s=random.choice((2.0, 20.0)),
        unanswered=chance(0.02, 0.2),
        uncertain=chance(0.02, 0.2),
        lose=chance(0.01, 0.1),
        repeat=chance(0.02),
        delay_s=random.choice((0.0, 0.05, 0.5)),
        move=chance(0.01, 0.05),
        forget=chance(0.005),
        buckets=chance(0.005, 0.02),
    )


def _draw_job(random: Random) -> Scenario:
    """Draw a run of few processes: there are several runs, and the faults are those of nodes."""
    drawn = draw_job(random)
    return replace(
        drawn,
        world=min(drawn.world, 2),
        steps=random.choice((15, 30)),
        step_s=random.choice((0.5, 1.0)),
        late=min(drawn.late, 0.01),
        kill=min(drawn.kill, 0.004),
        hwm=max(drawn.hwm, 5),
        tick_s=random.choice((0.2, 0.5)),
        greedy="",
        amnesia=0.0,
        relapse=0.0,
    )
