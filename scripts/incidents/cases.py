"""Which trainings, which faults, and what is said of them by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.alerts.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One incident.

    Args:
        name: Of the run and of its picture.
        title: Heading.
        recipe: Of the healthy training, a fork of which gets the fault.
        fault: Of `benchmarks.alerts.faults`.
        done: What the fault does, as a sentence; `{step}`, `{rank}` and `{module}` are filled in.
        lesson: What can be learnt from it.
        size: Of the fault, None if it has none.
    """

    name: str
    title: str
    recipe: Recipe
    fault: str
    done: str
    lesson: str
    size: float | None = None


_CNN: Final = Recipe(
    family="cnn_batchnorm",
    steps=400,
    width=8,
    batch=16,
    optimizer="momentum",
    schedule="one_cycle",
    accumulate=2,
)
_GPT: Final = Recipe(
    family="gpt", steps=400, width=16, batch=8, warm_up=0.05, schedule="cosine", clip=1.0
)
_FOUR_RANKS: Final = Recipe(
    family="regression", seed=1, steps=480, world=4, optimizer="momentum", schedule="step"
)


CASES: Final = (
    Case(
        name="learning-rate",
        title="A learning rate a hundred times too high",
        recipe=_CNN,
        fault="rate_raised",
        size=100.0,
        done="From step {step} on the learning rate is a hundred times what the schedule says, as "
        "after a slip in a configuration that was changed for a restart.",
        lesson="The loss shows it with the first update at the wrong rate, and the alert states "
        "the cause. What follows (layers that die, norms that stay high) is told as `info`, for it "
        "is not another fault.",
    ),
    Case(
        name="learning-rate-clipped",
        title="The same where gradients are clipped",
        recipe=_GPT,
        fault="rate_raised",
        size=100.0,
        done="The same in a small transformer with AdamW, clipping at 1 and a rate that was small "
        "to begin with: from step {step} on it is a hundred times that.",
        lesson="Nothing explodes here: the model is driven somewhere flat, and norms hardly move. "
        "The alert takes some steps, and says by how much the learning rate is above all before "
        "it.",
    ),
    Case(
        name="dead-layer",
        title="A layer that stops learning",
        recipe=_GPT,
        fault="dead",
        done="From step {step} on the gradient of `{module}` is exactly zero, as behind a `detach` "
        "that slipped in.",
        lesson="The rest of the network goes on learning around it, which is why a loss curve may "
        "look as good as ever.",
    ),
    Case(
        name="nan-of-one-rank",
        title="A NaN from one rank's batch",
        recipe=_FOUR_RANKS,
        fault="nan_loss",
        done="At step {step} the loss of rank {rank}, one of four, is NaN, as of a batch whose "
        "mask is empty. The average over the ranks then gives the NaN to all of them.",
        lesson="After the reduction every rank has the same NaN in every layer. Only what each "
        "rank knows of itself tells which one it came from.",
    ),
    Case(
        name="replica-corrupted",
        title="One weight of one replica is wrong",
        recipe=_FOUR_RANKS,
        fault="replica_corrupted",
        size=10.0,
        done="Before step {step} one weight of module `{module}` on rank {rank}, one of four, is "
        "changed, as by a bit that flips in memory. The averaged gradients stay equal on all "
        "ranks, bit for bit: comparing those shows nothing.",
        lesson="No norm and no loss shows it: only the comparison of weights does. They are "
        "compared every 100 steps, unless `weights_every=` says otherwise.",
    ),
    Case(
        name="hang",
        title="A training that hangs",
        recipe=_GPT,
        fault="stall",
        done="Before step {step} nothing happens for 40 minutes, while all processes live: a "
        "collective that one rank never enters, or a file system that does not answer.",
        lesson="A loss that does not come cannot look wrong. The warning was told while nothing "
        "happened, and was over as soon as the next step was there.",
    ),
)
