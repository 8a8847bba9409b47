"""Recipes: all parameters of a training, drawn by its family and its seed."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

T = TypeVar("T")

SHORTEST, LONGEST = 400, 1600
"""Steps of a run, drawn on a logarithmic scale."""

LONG_EVERY: Final = 6
LONG_FACTOR: Final = 3
"""One of so many seeds is of a long run, so that a run looked at rarely has a history, too."""

MIN_STEPS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Parameters that the recipes of a family may have.

    Args:
        widths: Units of a hidden layer.
        depths: Blocks.
        batches: Samples of a micro-batch.
        optimizers: Keys of `optimizers.OPTIMIZERS`.
        rate: Factor on the usual rate of each optimizer.
        schedules: Keys of `training.SCHEDULES`.
        precisions: `float32`, `bfloat16` (weights, too), `autocast` (to bfloat16), or `scaler`
            (autocast to float16 under a GradScaler).
        clips: Limits of the gradient norm, None for no clipping.
        worlds: Numbers of ranks.
        accumulates: Micro-batches of a step; more than one only with one rank.
        habits: `short_batches` (every 25th batch has a sixth of the samples), `resumed`,
            `resumed_anew` (without the state of the optimizer), `thawed` (the first third of the
            parameters is frozen at first), `summed` (the loss is a sum over samples); "" for none.
        speed: Factor on the number of steps; below 1 where a step takes long.
    """

    widths: tuple[int, ...] = (16, 24, 32, 48)
    depths: tuple[int, ...] = (1, 2, 3)
    batches: tuple[int, ...] = (4, 8, 16, 32, 64)
    optimizers: tuple[str, ...] = ("momentum", "adam", "adamw", "adamw", "rmsprop", "muon")
    rate: float = 1.0
    schedules: tuple[str, ...] = (
        "constant",
        "cosine",
        "cosine",
        "linear",
        "one_cycle",
        "step",
        "restarts",
        "by_hand",
    )
    precisions: tuple[str, ...] = ("float32", "float32", "float32", "autocast")
    clips: tuple[float | None, ...] = (None, None, 0.5, 1.0, 5.0)
    worlds: tuple[int, ...] = (1, 1, 2, 4)
    accumulates: tuple[int, ...] = (1, 1, 1, 2, 4)
    habits: tuple[str, ...] = ("", "", "", "short_batches", "resumed", "resumed_anew", "thawed")
    speed: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Parameters of one training; their meanings are those of `Options`.

    Args:
        family: Key of `families.FAMILIES`.
        seed: Of the weights, the data and the faults.
        steps: Optimizer steps of the healthy run.
        world: Ranks.
        width: Units of a hidden layer.
        depth: Blocks.
        batch: Samples of a micro-batch.
        optimizer: Key of `optimizers.OPTIMIZERS`.
        rate: Factor on the usual rate of the optimizer.
        schedule: Key of `training.SCHEDULES`.
        warm_up: Share of the run in which the rate rises, 0 for none.
        precision: As in `Options`.
        clip: Limit of the gradient norm.
        accumulate: Micro-batches of a step.
        habit: As in `Options`.
    """

    family: str
    seed: int = 0
    steps: int = 1000
    world: int = 1
    width: int = 32
    depth: int = 2
    batch: int = 32
    optimizer: str = "adamw"
    rate: float = 1.0
    schedule: str = "constant"
    warm_up: float = 0.0
    precision: str = "float32"
    clip: float | None = None
    accumulate: int = 1
    habit: str = ""

    @property
    def name(self) -> str:
        return f"{self.family}-{self.seed}"

    @property
    def about(self) -> str:
        """All of it in a few words, for people."""
        parts = [f"width {self.width}, depth {self.depth}, batch {self.batch}"]
        parts += [f"{self.optimizer} x{self.rate:.2g}, {self.schedule}, {self.precision}"]
        parts += [f"warm-up {self.warm_up:g}"] if self.warm_up else []
        parts += [f"clip {self.clip:g}"] if self.clip is not None else []
        parts += [f"accumulation {self.accumulate}"] if self.accumulate > 1 else []
        parts += [self.habit.replace("_", " ")] if self.habit else []
        return ", ".join(parts)


def draw(family: str, options: Options, seed: int, steps: int | None = None) -> Recipe:
    """Draw a recipe.

    Args:
        family: Name of the family.
        options: Parameters that it may have.
        seed: Decides on everything.
        steps: Of the run, drawn if None.
    """
    random = np.random.default_rng([seed, zlib.crc32(family.encode())])

    def one_of(some: tuple[T, ...]) -> T:
        return some[int(random.integers(len(some)))]

    length = log_uniform(random, SHORTEST, LONGEST) * options.speed
    length *= LONG_FACTOR if seed % LONG_EVERY == LONG_EVERY - 1 else 1
    world, optimizer = one_of(options.worlds), one_of(options.optimizers)
    precision, habit = one_of(options.precisions), one_of(options.habits)
    if habit == "summed" and optimizer in ("sgd", "momentum"):
        habit = ""  # it would need a rate of its own
    accumulate = one_of(options.accumulates)
    return Recipe(
        family=family,
        seed=seed,
        steps=steps or max(MIN_STEPS, round(length)),
        world=world,
        width=one_of(options.widths),
        depth=one_of(options.depths),
        batch=one_of(options.batches),
        optimizer=optimizer,
        rate=options.rate * log_uniform(random, 0.3, 1.5),
        schedule=one_of(options.schedules),
        warm_up=one_of((0.0, 0.0, 0.02, 0.05, 0.1)),
        precision=precision,
        clip=one_of(options.clips),
        accumulate=accumulate if world == 1 else 1,
        habit=habit,
    )


def log_uniform(random: np.random.Generator, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))
