"""A training that can be forked: a copy of it goes on exactly as it would have.

All randomness of a micro-batch (data, dropout, noise) is drawn after the generator was seeded by
seed, step, rank and micro-batch, so that a copy draws the same, and a resumed run goes on with the
data that comes next.
"""

from __future__ import annotations

import contextlib
import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Self, TypeAlias

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from benchmarks.alerts.recipe import Options, Recipe

Batch: TypeAlias = tuple[Tensor, ...]

EPOCH: Final = 25
"""Batches of an epoch whose last one is short."""

SHORT_SHARE: Final = 6
RESUMED_AT: Final = (0.25, 0.8)
THAWED_AT: Final = 0.1
"""Shares of a run at which it is resumed, and at which frozen parameters are thawed."""


Make: TypeAlias = Callable[[Sequence[nn.Parameter], float], list[Optimizer]]

_ADAM_RATE: Final = 2e-3


def _one(kind: Callable[..., Optimizer], usual: float, **settings: Any) -> Make:
    def make(parameters: Sequence[nn.Parameter], factor: float) -> list[Optimizer]:
        return [kind(parameters, lr=usual * factor, **settings)]

    return make


def _muon(parameters: Sequence[nn.Parameter], factor: float) -> list[Optimizer]:
    """Muon for matrices, AdamW for the rest, as it is meant to be used."""
    matrices = [each for each in parameters if each.ndim == 2]
    others = [each for each in parameters if each.ndim != 2]
    made: list[Optimizer] = []
    if matrices:
        made.append(torch.optim.Muon(matrices, lr=0.01 * factor, ns_steps=3))
    if others:
        made.append(torch.optim.AdamW(others, lr=_ADAM_RATE * factor))
    return made


OPTIMIZERS: Final[dict[str, Make]] = {
    "sgd": _one(torch.optim.SGD, 0.1),
    "momentum": _one(torch.optim.SGD, 0.03, momentum=0.9),
    "adam": _one(torch.optim.Adam, _ADAM_RATE),
    "gan_adam": _one(torch.optim.Adam, 1e-3, betas=(0.5, 0.999)),
    "adamw": _one(torch.optim.AdamW, _ADAM_RATE, weight_decay=0.05),
    "adagrad": _one(torch.optim.Adagrad, 0.03),
    "adafactor": _one(torch.optim.Adafactor, 0.01),
    "rmsprop": _one(torch.optim.RMSprop, 5e-4),
    "muon": _muon,
}
"""Name to what makes the optimizers of some parameters with a factor on the usual rate."""


class Training(ABC):
    """A model, how it is trained, and on what. Its subclasses are the families.

    A subclass sets the class attributes, makes `model` in `build`, and defines a batch and its
    loss.

    Args:
        recipe: Parameters.

    Attributes:
        model: What is trained.
        optimizers: Each steps at every step.
        scaler: For float16, None otherwise.
        rate_factor: Factor of a fault on the learning rate.
        spoil: Change of a fault to a batch, None for none.
    """

    name: ClassVar[str]
    """Name of the family."""
    options: ClassVar[Options] = Options()
    is_left_out: ClassVar[bool] = False
    """Whether no rule may be tuned on the family."""
    loss_may_grow: ClassVar[bool] = False
    """Whether a loss that grows is no sign that nothing is learnt."""

    model: nn.Module

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.seed, self.world, self.steps = recipe.seed, recipe.world, recipe.steps
        self.accumulate, self.clip = recipe.accumulate, recipe.clip
        self.rate_factor = 1.0
        self.spoil: Callable[[Batch], Batch] | None = None
        self._named: list[tuple[str, nn.Parameter]] | None = None
        torch.manual_seed(1_000_003 * (recipe.seed + 1))
        self.build()
        if recipe.precision == "bfloat16":
            self.model = self.model.bfloat16()
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizers = OPTIMIZERS[recipe.optimizer](trained, recipe.rate)
        self._first_rates = [
            float(group["lr"]) for each in self.optimizers for group in each.param_groups
        ]
        self.scaler = None
        if recipe.precision == "scaler":
            self.scaler = GradScaler("cpu", init_scale=2.0**24, growth_interval=200)
        self._frozen = trained[: len(trained) // 3] if recipe.habit == "thawed" else []
        for each in self._frozen:
            each.requires_grad_(False)

    @abstractmethod
    def build(self) -> None:
        """Make `model` with the generator as it is seeded."""

    @abstractmethod
    def batch(self, step: int, rank: int) -> Batch:
        """Draw a micro-batch; its first dimension is that of the samples."""

    @abstractmethod
    def loss(self, step: int, *batch: Tensor) -> Tensor:
        """Return the scalar loss of a micro-batch, with its graph."""

    def after_step(self, step: int) -> None:
        """Do what belongs to a step besides, such as to copy weights to a target network."""
        if self._frozen and step == round(THAWED_AT * self.steps):
            for each in self._frozen:
                each.requires_grad_(True)

    def samples(self, step: int) -> int:
        """Return the number of samples of a micro-batch."""
        is_short = self.recipe.habit == "short_batches" and step % EPOCH == EPOCH - 1
        return max(1, self.recipe.batch // SHORT_SHARE) if is_short else self.recipe.batch

    # What the recorder calls

    @property
    def rate(self) -> float:
        """The learning rate of the first group as it is set."""
        return float(self.optimizers[0].param_groups[0]["lr"])

    def set_rate(self, step: int) -> None:
        done = step / self.steps
        factor = SCHEDULES[self.recipe.schedule](done) * self.rate_factor
        if self.recipe.warm_up:
            factor *= min(1.0, (done + 1e-3) / self.recipe.warm_up)
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
        if self.recipe.precision == "bfloat16":
            batch = tuple(each.bfloat16() if each.is_floating_point() else each for each in batch)
        with self._autocast():
            loss = self.loss(step, *batch).float()
        size = len(batch[0])
        return (loss * size if self.recipe.habit == "summed" else loss), size

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        if self._named is None:
            self._named = [(n, each) for n, each in self.model.named_parameters() if each.numel()]
        return self._named

    def is_resumed_at(self, step: int) -> bool:
        """Tell whether the job was stopped before this step, and begins anew here."""
        is_habit = self.recipe.habit.startswith("resumed")
        return is_habit and any(round(share * self.steps) == step for share in RESUMED_AT)

    def resume(self) -> None:
        """Be a new process that read a checkpoint."""
        if self.recipe.habit == "resumed_anew":
            for optimizer in self.optimizers:
                optimizer.state.clear()

    def fork(self) -> Self:
        return copy.deepcopy(self)

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        dtype = {"autocast": torch.bfloat16, "scaler": torch.float16}.get(self.recipe.precision)
        return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype)


def _cosine(done: float, last: float) -> float:
    return last + (1.0 - last) * 0.5 * (1.0 + math.cos(math.pi * done))


def _one_cycle(done: float, share: float = 0.3) -> float:
    """Rise and fall along half cosines, as `OneCycleLR` does by default."""
    return _cosine(1 - done / share, 0.04) if done < share else _cosine((done - share) / 0.7, 1e-4)


def _step(done: float) -> float:
    return 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01


def _by_hand(done: float) -> float:
    """Jump up and down, as of a rate that people set anew."""
    return 0.5 if done < 0.2 else 1.5 if done < 0.4 else 0.3 if done < 0.75 else 0.6


SCHEDULES: Final[Mapping[str, Callable[[float], float]]] = {
    "constant": lambda _: 1.0,
    "cosine": lambda done: _cosine(done, 0.1),
    "linear": lambda done: 1.0 - 0.95 * done,
    "one_cycle": _one_cycle,
    "step": _step,
    "restarts": lambda done: _cosine(done * 4 % 1.0, 0.01),
    "by_hand": _by_hand,
}
"""Name to the factor on the learning rate after a share of the run."""
