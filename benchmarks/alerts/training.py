"""A training that can be forked: a copy of it goes on exactly as it would have.

All randomness of a micro-batch (data, dropout, noise) is drawn after the generator was seeded by
seed, step, rank and micro-batch, so that a copy draws the same, and a resumed run goes on with the
data that comes next.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Self, TypeAlias

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

Batch: TypeAlias = tuple[Tensor, ...]


class Training(ABC):
    """A model, how it is trained, and on what.

    A subclass sets the class attributes that differ, makes `model` and `optimizers` in `build`, and
    says what a batch and its loss are.

    Attributes:
        model: What is trained.
        optimizers: Each steps at every step.
        scaler: For fp16, None otherwise.
        seed: Of the weights and the data.
        world: Ranks, whose gradients are averaged.
        steps: How many a healthy run has.
        rate_factor: What faults multiply the learning rate by.
        spoil: What faults do to a batch, None does nothing.
    """

    name: ClassVar[str]
    """Name of the workload."""
    about: ClassVar[str]
    """Model, optimizer and what is particular, for the report."""
    worlds: ClassVar[tuple[int, ...]] = (1,)
    """Number of ranks by seed, in turns."""
    default_steps: ClassVar[int] = 3000
    accumulate: int = 1
    """Micro-batches per step; only with one rank."""
    clip: float | None = None
    resumes_at: tuple[float, ...] = ()
    """Shares of the run at which it is stopped and resumed, as a new attempt."""
    keeps_optimizer_state: bool = True
    """Whether it is resumed with the optimizers' state."""

    model: nn.Module
    optimizers: list[Optimizer]

    def __init__(self, seed: int, steps: int | None = None) -> None:
        self.seed = seed
        self.world = self.worlds[seed % len(self.worlds)]
        self.steps = steps or self.default_steps
        self.scaler: GradScaler | None = None
        self.rate_factor = 1.0
        self.spoil: Callable[[Batch], Batch] | None = None
        self._named: list[tuple[str, nn.Parameter]] | None = None
        torch.manual_seed(1_000_003 * (seed + 1))
        self.build()
        self._first_rates = [
            float(group["lr"]) for each in self.optimizers for group in each.param_groups
        ]

    @abstractmethod
    def build(self) -> None:
        """Make `model` and `optimizers` with the generator as it is seeded."""

    @abstractmethod
    def batch(self, step: int, rank: int) -> Batch:
        """Draw a micro-batch; its first dimension is that of the samples."""

    @abstractmethod
    def loss(self, step: int, *batch: Tensor) -> Tensor:
        """Return the scalar loss of a micro-batch, with its graph."""

    def schedule(self, done: float) -> float:
        """Return what the learning rate is multiplied by after a share of the run."""
        del done
        return 1.0

    def after_step(self, step: int) -> None:  # noqa: B027 - most do nothing
        """Do what belongs to a step besides, such as to copy weights to a target network."""

    # What the recorder calls

    @property
    def rate(self) -> float:
        """The learning rate of the first group as it is set."""
        return float(self.optimizers[0].param_groups[0]["lr"])

    def set_rate(self, step: int) -> None:
        """Set the learning rate of a step."""
        factor = self.schedule(step / self.steps) * self.rate_factor
        groups = [group for each in self.optimizers for group in each.param_groups]
        for group, first in zip(groups, self._first_rates, strict=True):
            group["lr"] = first * factor

    def micro_loss(self, step: int, rank: int, micro: int) -> tuple[Tensor, int]:
        """Draw a micro-batch; return its loss and how many samples it had."""
        seed = ((self.seed * 1_000_003 + step) * 16 + rank) * 16 + micro
        torch.default_generator.manual_seed(seed)
        batch = self.batch(step, rank)
        if self.spoil is not None:
            batch = self.spoil(batch)
        return self.loss(step, *batch), len(batch[0])

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters with elements."""
        if self._named is None:
            self._named = [(n, each) for n, each in self.model.named_parameters() if each.numel()]
        return self._named

    def is_resumed_at(self, step: int) -> bool:
        """Tell whether the job was stopped before this step, and begins anew here."""
        return any(round(share * self.steps) == step for share in self.resumes_at)

    def resume(self) -> None:
        """Be a new process that read a checkpoint."""
        if not self.keeps_optimizer_state:
            for optimizer in self.optimizers:
                optimizer.state.clear()

    def fork(self) -> Self:
        """Return a copy that shares nothing."""
        return copy.deepcopy(self)


def warm_up(done: float, share: float) -> float:
    """Rise linearly to 1 within a share of the run."""
    return min(1.0, (done + 1e-3) / share)


def warm_up_cosine(done: float, share: float = 0.05, last: float = 0.1) -> float:
    """Rise, then fall along half a cosine to *last*."""
    if done < share:
        return warm_up(done, share)
    along = (done - share) / (1.0 - share)
    return last + (1.0 - last) * 0.5 * (1.0 + math.cos(math.pi * along))


def one_cycle(done: float, share: float = 0.3, first: float = 0.04, last: float = 1e-4) -> float:
    """Rise and fall along half cosines, as `OneCycleLR` does by default."""
    low, along = (first, 1 - done / share) if done < share else (last, (done - share) / (1 - share))
    return low + (1.0 - low) * 0.5 * (1.0 + math.cos(math.pi * along))


def step_decay(done: float, at: tuple[float, ...] = (0.5, 0.75), factor: float = 0.1) -> float:
    """Fall by a factor at each of some shares of the run."""
    return math.prod(factor for share in at if done >= share)


def restarts(done: float, cycles: int = 4, last: float = 0.01) -> float:
    """Fall along half a cosine in each cycle, and begin anew (SGDR)."""
    along = done * cycles % 1.0
    return last + (1.0 - last) * 0.5 * (1.0 + math.cos(math.pi * along))
