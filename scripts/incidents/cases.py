"""Which trainings, which faults, and what is said of them by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One incident.

    Args:
        name: Of the run and of its picture.
        title: Heading.
        workload: Of `benchmarks.alerts.workloads`.
        seed: Of the training; it decides on the number of ranks, too.
        fault: Of `benchmarks.alerts.faults`.
        steps: Of the healthy training, a fork of which gets the fault.
        done: What the fault does, as a sentence; `{step}`, `{rank}` and `{module}` are filled in.
        lesson: What can be learnt from it.
    """

    name: str
    title: str
    workload: str
    seed: int
    fault: str
    steps: int
    done: str
    lesson: str


CASES: Final = (
    Case(
        name="learning-rate",
        title="A learning rate a hundred times too high",
        workload="gpt",
        seed=0,
        fault="rate_x100",
        steps=400,
        done="From step {step} on the learning rate is a hundred times what the schedule says, as "
        "after a slip in a configuration that was changed for a restart.",
        lesson="The step before is the last that was right: go back to a checkpoint from before it.",
    ),
    Case(
        name="dead-layer",
        title="A layer that stops learning",
        workload="mlp",
        seed=0,
        fault="dead",
        steps=400,
        done="From step {step} on the gradient of `{module}` is exactly zero, as behind a `detach` "
        "that slipped in, or a ReLU that no input reaches any more.",
        lesson="The rest of the network goes on learning around it, which is why a loss curve may "
        "look as good as ever.",
    ),
    Case(
        name="nan-of-one-rank",
        title="A NaN from one rank's batch",
        workload="mlp",
        seed=1,
        fault="nan_loss",
        steps=400,
        done="At step {step} the loss of rank {rank}, one of four, is NaN, as of a batch whose mask "
        "is empty. The average over the ranks then gives the NaN to all of them.",
        lesson="After the reduction every rank has the same NaN in every layer. Only what each "
        "rank knows of itself tells which one it came from.",
    ),
    Case(
        name="replica-corrupted",
        title="One weight of one replica is wrong",
        workload="mlp",
        seed=1,
        fault="replica_corrupted",
        steps=480,
        done="Before step {step} one weight of `{module}` on rank {rank}, one of four, is changed, "
        "as by a bit that flips in memory. The averaged gradients stay equal on all ranks, bit for "
        "bit, so nothing that looks at them can see it.",
        lesson="Weights are compared every 100 steps unless `weights_every=` says otherwise: that "
        "is how long it takes, and between the last good comparison and the first bad one nobody "
        "knows more.",
    ),
    Case(
        name="hang",
        title="A training that hangs",
        workload="gpt",
        seed=0,
        fault="stall",
        steps=400,
        done="Before step {step} nothing happens for 40 minutes, while all processes live: a "
        "collective that one rank never enters, or a file system that does not answer.",
        lesson="A loss that does not come cannot look wrong. The alert is over as soon as the next "
        "step is there.",
    ),
)
