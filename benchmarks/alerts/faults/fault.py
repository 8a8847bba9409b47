"""A fault: its change to a training, the expected alerts, and the check of its effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from torch import nn

from benchmarks.alerts.recorded import FloatArray, Rows, modules_of
from benchmarks.alerts.recording import Gradients, Job, Meddler
from gradwatch_wire.columns import MEASURED_COLUMNS

LOUD: Final = ("exploding", "loss", "nonfinite")
"""Rules that are right about something that makes norms or the loss jump."""


class UnfitError(Exception):
    """The fault makes no sense in this training."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a fault is to be put.

    Args:
        job: The fork, at `step`.
        layers: Names, in the order of the columns.
        step: Its first step.
        columns: (6, layers) of the last healthy step.
        random: Chooses what is to be chosen.
    """

    job: Job
    layers: tuple[str, ...]
    step: int
    columns: FloatArray
    random: np.random.Generator


class Fault(Meddler):
    """One fault. A subclass meddles in one of the methods, and says what must show.

    Args:
        site: Where it is put.

    Raises:
        UnfitError: If it makes no sense there.
    """

    kind: str
    rules: tuple[str, ...]
    length: int = 100
    """Steps that a fork goes on for."""
    shows_after: int | None = 0
    """Steps from the cause to the first record whose gradients or loss it changes; None: it cannot
    be said before."""
    is_gradual: bool = False
    is_in_numbers: bool = True
    """Whether gradients or losses differ; a gap in time does not show in them."""
    needs: ClassVar[str] = ""
    """What only some trainings have: `ranks`, several of them, or `scaler`."""
    factor: float | None = None
    ranks: tuple[int, ...] = ()
    module: str | None = None

    def __init__(self, site: Site) -> None:
        self.step = site.step
        self.site = site
        self.last_step = site.step + self.length - 1
        self.choose(site)
        chosen = modules_of(site.layers)
        places = () if self.module is None else chosen[self.module]
        self.layers = tuple(site.layers[place] for place in places)

    def choose(self, site: Site) -> None:
        """Choose module, rank and the like.

        Raises:
            UnfitError: If there is none.
        """

    def check(self, healthy: Rows, bad: Rows) -> None:
        """Assert on the records that what the label says is there.

        Args:
            healthy: Those of the healthy run, from the first step of the fork on.
            bad: Those of the fork.
        """

    # What subclasses choose with

    def is_on(self, step: int) -> bool:
        return self.step <= step <= self.last_step

    def choose_module(self, site: Site, kinds: Sequence[type[nn.Module]] = ()) -> str:
        """Choose a module all of whose layers have a gradient, and one of them a matrix.

        Raises:
            UnfitError: If there is none.
        """
        l2 = site.columns[MEASURED_COLUMNS.index("l2")]
        known = dict(site.job.training.named_parameters())
        total = float(np.sqrt(np.nansum(l2**2)))
        fit = []
        for module, places in modules_of(site.layers).items():
            if not module:
                continue
            own = l2[list(places)]
            is_alive = bool(np.all(own > 0)) and float(np.sqrt(np.sum(own**2))) > 1e-3 * total
            is_matrix = any(known[site.layers[place]].ndim > 1 for place in places)
            if not (is_alive and is_matrix):
                continue
            if kinds and not isinstance(
                site.job.training.model.get_submodule(module), tuple(kinds)
            ):
                continue
            fit.append(module)
        if not fit:
            raise UnfitError
        return str(site.random.choice(fit))

    def choose_rank(self, site: Site) -> int:
        """Choose one of several ranks.

        Raises:
            UnfitError: If there is only one.
        """
        if len(site.job.replicas) < 2:
            raise UnfitError
        return int(site.random.integers(len(site.job.replicas)))

    def places(self) -> list[int]:
        return [self.site.layers.index(name) for name in self.layers]


def expect(ratio: Any, factor: float, what: str, tolerance: float = 0.02) -> None:
    """Assert that numbers are a factor, give or take what short dtypes round.

    Raises:
        AssertionError: If they are not.
    """
    numbers = np.asarray(ratio, dtype=np.float64)
    assert np.allclose(numbers, factor, rtol=tolerance), f"{what}: {numbers}, expected {factor}"


class OnReduced(Fault):
    """A fault in the gradients as all ranks have them after the reduction."""

    _made: tuple[int, Gradients] | None = None

    def reduced(self, job: Job, step: int, rank: int, gradients: Gradients) -> Gradients:
        if not self.is_on(step):
            return gradients
        if self._made is None or self._made[0] != step:
            self._made = step, self.change(step, dict(gradients))
        return self._made[1]

    def change(self, step: int, gradients: Gradients) -> Gradients:
        """Return the changed gradients; the tensors are not changed in place."""
        raise NotImplementedError
