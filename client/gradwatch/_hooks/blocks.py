"""Blocks of a watched model, and their gains on the way from the monitor to a GAINS record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from torch import nn

from gradwatch._faults import Faults
from gradwatch._layers.wrappers import unwrapped_modules
from gradwatch._pending.numbers import Values
from gradwatch._pending.record import PendingRecord
from gradwatch._pending.unscaled import unscaled
from gradwatch._recording.observer import Observer
from gradwatch._recording.readback import Readback
from gradwatch._recording.step_sample import StepSample
from gradwatch.gain_monitor import GradientGainMonitor
from gradwatch_wire import Column, Gains
from gradwatch_wire.columns import L2
from gradwatch_wire.limits import MAX_BLOCKS
from gradwatch_wire.names import Scalar

NORM_TYPE: Final = L2


class PendingGains(PendingRecord):
    """A GAINS record whose norms are on their way.

    Args:
        values: The norm of each of these; then the loss scale that they carry, if there is one.
    """

    def __init__(
        self, step: int, blocks: Sequence[str], recorded: Sequence[int], values: Values
    ) -> None:
        self._blocks = tuple(blocks)
        self._recorded = recorded
        super().__init__(step, values)

    def _make(self, values: Sequence[Sequence[float]]) -> list[Gains]:
        found = [number for (number,) in values]
        count = len(self._recorded)
        found, scales = found[:count], found[count:]
        for scale in scales:
            found = unscaled(found, scale)
        norms = [math.nan] * len(self._blocks)
        for index, norm in zip(self._recorded, found, strict=True):
            norms[index] = norm
        column = Column.pack("<f8", norms)
        return [Gains(step=self.step, blocks=self._blocks, norm_type=NORM_TYPE, norms=column)]


class BlockGains(Observer):
    """Watches the outputs of named blocks; each collected step makes a record of its own."""

    def __init__(
        self,
        blocks: Mapping[str, nn.Module],
        readback: Readback,
        put: Callable[[PendingRecord], None],
        faults: Faults,
    ) -> None:
        self._names = list(blocks)
        self._readback = readback
        self._put = put
        self._faults = faults
        self._monitor = GradientGainMonitor(
            list(blocks.values()),
            norm_type=NORM_TYPE,
            strict_single_backward=False,
            on_error=lambda why: faults.note("blocks", why),
        )

    @property
    def active(self) -> bool:
        """State of the monitor: true while it records."""
        return self._monitor.active

    @active.setter
    def active(self, active: bool) -> None:
        self._monitor.active = active

    def forget(self) -> None:
        self._monitor.reset()

    def after_step(self, sample: StepSample) -> None:
        """Hand over the norms recorded since the last step, if there are any."""
        norms = self._monitor.take()
        recorded = [index for index, norm in enumerate(norms) if norm is not None]
        if not recorded:
            return
        # Gradients at the blocks' outputs carry the loss scale, whatever was unscaled since.
        scale = sample.device_scalars.get(Scalar.LOSS_SCALE, ())
        values = self._readback.start([*(norm for norm in norms if norm is not None), *scale])
        self._put(PendingGains(sample.step, self._names, recorded, values))

    def close(self) -> None:
        self._monitor.close()


def find_blocks(
    blocks: Iterable[nn.Module] | None,
    model: nn.Module | Mapping[str, nn.Module],
    *,
    is_stage: bool = False,
) -> dict[str, nn.Module]:
    """Return the blocks by name: their name in the model, else `block.0`, `block.1`, ...

    Raises:
        TypeError: If *blocks* is no list of modules.
        ValueError: If it is empty, too long, or names a module twice.
    """
    if blocks is None:
        return {}
    if not isinstance(blocks, Iterable):
        msg = f"blocks: a list of modules, got {type(blocks).__name__}"
        raise TypeError(msg)
    found = list(blocks)
    for block in found:
        if not isinstance(block, nn.Module):
            msg = f"blocks: modules, got {type(block).__name__}"
            raise TypeError(msg)
    if not 1 < len(found) <= MAX_BLOCKS:
        msg = f"blocks: 2 to {MAX_BLOCKS} modules, got {len(found)}"
        raise ValueError(msg)
    if len({id(block) for block in found}) < len(found):
        msg = "blocks: one module is in the list twice; its outputs could not be told apart"
        raise ValueError(msg)
    named = {"": model} if isinstance(model, nn.Module) else model
    known = {
        id(module): name
        for prefix, top in named.items()
        for name, module in unwrapped_modules(top, prefix, is_stage=is_stage)
    }
    return {known.get(id(m)) or f"block.{i}": m for i, m in enumerate(found)}
