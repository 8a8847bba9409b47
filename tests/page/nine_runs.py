"""Nine runs that a person has to understand at once: eight layers or a thousand, right or wrong.

Each is a training in numbers, step by step and rank by rank; `feed_run` sends it to an aggregator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from gradwatch_wire import Bye, Column, Stats
from tests.page.feeding import NAN
from tests.support.aggregator import Aggregator

BLOCKS: Final = tuple(f"blocks.{block}.{part}" for block in range(6) for part in ("attn", "mlp"))
THOUSAND: Final = tuple(f"h.{number}.weight" for number in range(1000))


@dataclass(frozen=True)
class Step:
    """Numbers of one rank at one step.

    Args:
        norms: L2 norm of each layer.
        loss: Its loss.
        lr: Learning rate.
        own: L2 norms of its gradient before the reduction, if they are sent.
    """

    norms: Sequence[float]
    loss: float
    lr: float = 1e-3
    own: Sequence[float] | None = None


@dataclass(frozen=True)
class NamedRun:
    """One of the nine.

    Args:
        name: Of the run.
        step: Returns what a rank has at a step.
        told: Beginning of the headline; what is on the page otherwise.
        num_steps: Its steps.
        layers: Their names.
        world: Its ranks.
        ends: Whether it says that it has ended.
        num_marks: Rows with a mark beside them: an alert that names few layers is about them.
        view: How the picture is coloured without being touched.
    """

    name: str
    step: Callable[[int, int], Step]
    told: str
    num_steps: int = 240
    layers: tuple[str, ...] = BLOCKS
    world: int = 1
    ends: bool = True
    num_marks: int = 0
    view: str = "change"


def _calm(step: int, num_layers: int = len(BLOCKS), *, decay: float = 0.003) -> list[float]:
    """Return norms that shrink slowly, and differ by some per cent from step to step."""
    draw = Random(step)
    return [
        0.1 * (1.0 + layer % 7) * math.exp(-decay * step) * (1.0 + 0.06 * draw.uniform(-1, 1))
        for layer in range(num_layers)
    ]


def _loss(step: int, scale: float = 2.0) -> float:
    return scale * math.exp(-0.004 * step) + 0.4 + 0.02 * Random(step + 7).uniform(-1, 1)


def _healthy(decay: float, rank: int, step: int) -> Step:
    return Step(_calm(step, decay=decay), _loss(step))


def _nan_of_one_rank(rank: int, step: int) -> Step:
    is_bad = step >= 180
    loss = NAN if is_bad and rank == 2 else _loss(step)
    return Step([NAN] * len(BLOCKS) if is_bad else _calm(step), loss)


def _explosion(rank: int, step: int) -> Step:
    times = 1.0 if step < 151 else min(3.0 ** (step - 150), 2000.0)
    loss = _loss(step) if step < 152 else 40.0 + step - 152
    return Step([times * own for own in _calm(step)], loss, lr=1e-3 if step < 150 else 0.5)


def _vanishing(rank: int, step: int) -> Step:
    norms = [own * 10.0 ** (at - 11) for at, own in enumerate(_calm(step, decay=0.0))]
    return Step(norms, 2.3 + 0.01 * Random(step).uniform(-1, 1))


def _one_dead_layer(rank: int, step: int) -> Step:
    norms = _calm(step, 1000)
    norms[777] = 0.0 if step >= 120 else norms[777]
    return Step(norms, _loss(step))


def _ramp(rank: int, step: int) -> Step:
    times = math.exp(0.05 * max(0, step - 120))
    return Step([times * own for own in _calm(step)], _loss(step) * (1.0 + 0.3 * math.log(times)))


def _one_ranks_batch(rank: int, step: int) -> Step:
    norms = _calm(step)
    is_bad = step >= 200
    own = [norm * (60.0 if is_bad and rank == 1 else 1.0 + 0.01 * rank) for norm in norms]
    whole = [norm * (15.0 if is_bad else 1.0) for norm in norms]
    return Step(whole, _loss(step) * (9.0 if is_bad and rank == 1 else 1.0), own=own)


NINE: Final = (
    NamedRun(
        "nan-of-one-rank",
        _nan_of_one_rank,
        "Loss or forward pass not finite since step 180 on rank 2",
        world=4,
    ),
    NamedRun("explosion", _explosion, "Loss up since step 152 on rank 0: 40"),
    NamedRun("vanishing-from-the-start", _vanishing, "Vanishing since step 0", view="size"),
    NamedRun(
        *("one-dead-layer-of-1000", _one_dead_layer, "Zero gradient since step 120"),
        layers=THOUSAND,
        num_marks=1,
    ),
    NamedRun("ramp", _ramp, "Exploding since step"),
    NamedRun("hang", partial(_healthy, 0.003), "Hang: no step for", ends=False, world=2),
    NamedRun("one-ranks-batch", _one_ranks_batch, "Exploding since step 200 on rank 1", world=4),
    NamedRun("converged", partial(_healthy, 0.03), "healthy", num_steps=400),
    NamedRun("first-40-steps", partial(_healthy, 0.03), "healthy", num_steps=40, ends=False),
)


def feed_run(aggregator: Aggregator, run: NamedRun) -> None:
    """Send a run to an aggregator, and wait until it is published."""
    peers = [
        aggregator.peer(run=run.name, rank=rank, world=run.world).attach(run.layers)
        for rank in range(run.world)
    ]
    for step in range(run.num_steps):
        for rank, peer in enumerate(peers):
            peer.send(_record(step, run.step(rank, step)))
    for peer in peers:
        peer.acked()
        if run.ends:
            peer.say(Bye(last_step=run.num_steps - 1, reason="closed"))
    for peer in peers:
        aggregator.shows(peer)


def _record(step: int, own: Step) -> Stats:
    columns = {"l2": own.norms} | ({} if own.own is None else {"local_l2": own.own})
    return Stats(
        manifest_id=1,
        step=step,
        labels={"point": "backward", "reduction": "mean", "taken": True},
        scalars={"loss": own.loss, "lr": own.lr, "step_time_s": 0.2, "batch_size": 32.0},
        columns={name: Column.pack("<f8", numbers) for name, numbers in columns.items()},
    )
