"""Acts of the demo: a fault each, and the alert that has to follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

RUN: Final = "demo"
WORLD: Final = 2
STEPS: Final = 166
MOST_STEPS_LATE: Final = 5


@dataclass(frozen=True, slots=True)
class Act:
    """A stretch of the training run, with a fault at its first step."""

    name: str
    first: int
    story: str
    fault: str  # the story in a few words
    sabotage: str = ""  # arguments of the training script
    ranks: tuple[int, ...] = ()  # that the fault is on
    rule: str | None = None  # that has to fire; None: none may
    shows_after: range = range(1)  # steps until the fault is in a gradient


ACTS: Final = (
    Act("one", 0, "All is well. No alert may fire.", "nothing"),
    Act(
        "two",
        100,
        "At step 100 rank 1 gets a batch of zero bytes. The loss masks all of it: its mean is 0/0, "
        "and DDP spreads the NaN to every rank.",
        "batch of zero bytes",
        "--poison-step 100 --poison-rank 1",
        (1,),
        "nonfinite",
    ),
    Act(
        "three",
        150,
        "From step 150 on the learning rate is 1 on all ranks, 500 times what it was.",
        "learning rate x 500",
        "--raise-lr-step 150 --raise-lr 1",
        (0, 1),
        "exploding",
        range(1, MOST_STEPS_LATE + 1),
    ),
)


def act_of(step: int) -> Act:
    return next(act for act in reversed(ACTS) if act.first <= step)


def on_ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return "rank not known"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
