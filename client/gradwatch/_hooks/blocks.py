"""Block gains of a watched model: what the monitor recorded, on its way to a GAINS record."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from gradwatch._faults import Faults
from gradwatch._statistics.readback import Readback, pack
from gradwatch.gain_monitor import GradientGainMonitor
from gradwatch_wire import Column, Gains, Manifest, Record

NORM_TYPE: Final = "l2"


class BlockNorms:
    """Norms at the blocks' outputs of one step, waiting for the device."""

    def __init__(self, step: int, blocks: Sequence[str], norms: Sequence[Tensor | None]) -> None:
        self.step = step
        self.time_ns = time.time_ns()
        self.manifests: list[Manifest] = []
        self._blocks = tuple(blocks)
        self._norms = [math.nan] * len(blocks)
        by_device: dict[torch.device, list[int]] = {}
        for index, norm in enumerate(norms):
            if norm is not None:
                by_device.setdefault(norm.device, []).append(index)
        self._readbacks = [
            (own, Readback(pack([n for i in own if (n := norms[i]) is not None])))
            for own in by_device.values()
        ]

    def ready(self) -> bool:
        """Tell whether all norms have arrived; never waits."""
        return all(readback.ready() for _, readback in self._readbacks)

    def records(self) -> list[Record]:
        """Return the GAINS record."""
        for own, readback in self._readbacks:
            for index, norm in zip(own, readback.read(), strict=True):
                self._norms[index] = norm
        norms = Column.pack("<f8", self._norms)
        return [
            *self.manifests,
            Gains(step=self.step, blocks=self._blocks, norm_type=NORM_TYPE, norms=norms),
        ]


class Blocks:
    """Watches the outputs of named blocks."""

    def __init__(self, blocks: Mapping[str, nn.Module], faults: Faults) -> None:
        self._names = list(blocks)
        self._monitor = GradientGainMonitor(
            list(blocks.values()),
            norm_type=NORM_TYPE,
            strict_single_backward=False,
            on_error=lambda why: faults.note("blocks", why),
        )

    def take(self, step: int, divisor: Tensor | None) -> BlockNorms | None:
        """Return the norms recorded since the last call, None if there are none.

        Args:
            step: The step they belong to.
            divisor: Loss scale that the loss was multiplied with, 0-d, or None.
        """
        norms = self._monitor.take()
        if all(norm is None for norm in norms):
            return None
        if divisor is not None:
            norms = [None if n is None else n / divisor.to(n.device) for n in norms]
        return BlockNorms(step, self._names, norms)

    def close(self) -> None:
        """Remove the hooks."""
        self._monitor.close()
