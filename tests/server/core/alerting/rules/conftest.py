"""A training with noise, that rules about layers are tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.core import Cluster

NAMES = ("a.weight", "a.bias", "b.weight", "c.weight")


class Training:
    """A run of one rank whose norms are about 1; `go` is a further step."""

    def __init__(self, cluster: Any, names: Sequence[str] = NAMES, **settings: Any) -> None:
        self.job = cluster(names=names, **settings).start()
        random = np.random.default_rng(0)
        self._noise: Iterator[Any] = iter(np.exp(random.normal(0.0, 0.15, (4_000, len(names)))))
        self.step = -1

    def go(self, factors: Sequence[float] | float = 1.0, **changes: Any) -> list[tuple[str, ...]]:
        """Return `(rule, state, severity)` of what is told at a step."""
        self.step += 1
        norms = next(self._noise) * factors
        loss = changes.pop("loss", 1.0) * float(norms[norms > 0.0].sum() or 1.0) ** 0.05
        told = self.job.step(self.step, norms.tolist(), loss=loss, **changes)
        return [(a.rule, a.state.value, a.severity.value) for a in told]

    def healthy(self, steps: int, **changes: Any) -> None:
        for _ in range(steps):
            assert self.go(**changes) == []

    @property
    def last(self) -> Any:
        return self.job.alerts[-1]


@pytest.fixture
def training() -> Callable[..., Training]:
    """Make a run: `training(names=("a.w",))`."""

    def make(*args: Any, **settings: Any) -> Training:
        return Training(Cluster, *args, **settings)

    return make
