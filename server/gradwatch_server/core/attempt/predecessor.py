"""Predecessors: what was usual in the attempt before, for one that goes on from its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gradwatch_server.core.judge.judge import Judge

NEAR: Final = 2
"""An attempt goes on near a step if it begins between this part of it and this many times it."""


@dataclass(frozen=True, slots=True)
class Predecessor:
    """An attempt that was there when another one of its run began.

    Args:
        names: (layers,) names of its layers.
        world: Ranks of its job.
        step: Step of its last frame.
        judge: What was usual in it.
    """

    names: tuple[str, ...]
    world: int
    step: int
    judge: Judge

    def judge_for(self, names: Sequence[str], world: int, step: int) -> Judge | None:
        """Return what is usual in an attempt that goes on where this one stopped, else None.

        It does if it has the same layers and ranks, and begins neither at step 0 nor far from
        where this one stopped. Norms change with the order of magnitude of the step, and
        checkpoints may be far apart: from half of that step to twice it is near.

        Args:
            names: (layers,) names of its layers.
            world: Ranks of its job.
            step: Step of its first frame.
        """
        is_near = 0 < step <= NEAR * self.step and self.step <= NEAR * step
        if not is_near or world != self.world or set(names) != set(self.names):
            return None
        judge = self.judge.rearranged(self.names, names)
        judge.resume()
        return judge
