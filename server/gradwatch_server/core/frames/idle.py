"""Idle layers: those that had a gradient and have none, and what ranks say of why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from gradwatch_server.core.arrays import BoolArray, IndexArray
from gradwatch_server.core.frames.layers import Layers
from gradwatch_wire import Manifest


@dataclass(frozen=True, slots=True, eq=False)
class LayersWithoutGradient:
    """Layers that one rank had a gradient of, and has none of in the records of a manifest.

    Args:
        frozen: (frozen,) position in the attempt's layers of those with `requires_grad` off.
        unused: (unused,) position of layers with `requires_grad` on that no backward pass reached.
    """

    frozen: IndexArray
    unused: IndexArray

    def __len__(self) -> int:
        return len(self.frozen) + len(self.unused)

    @classmethod
    def declare(cls, manifest: Manifest, layers: Layers) -> Self | None:
        """Return what a manifest says of them, None if nothing of a layer that is known."""
        idle = cls(layers.places(manifest.frozen), layers.places(manifest.unused))
        return idle if len(idle) else None


class IdleLayers(Protocol):
    """A record of one rank, as far as this goes."""

    @property
    def idle(self) -> LayersWithoutGradient | None:
        """Layers that a manifest lacks, as it tells of them."""


def idle_layers(parts: Iterable[IdleLayers], present: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Return (layers,) which are frozen, and which are unused, of those that no rank reported.

    Where one rank says this and another that, the layer is unused.
    """
    frozen, unused = np.zeros_like(present), np.zeros_like(present)
    for idle in {id(part.idle): part.idle for part in parts}.values():
        if idle is not None:
            frozen[idle.frozen] = unused[idle.unused] = True
    unused &= ~present
    frozen &= ~present & ~unused
    return frozen, unused
