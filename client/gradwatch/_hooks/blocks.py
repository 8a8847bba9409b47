"""Block gains of a watched model: what the monitor recorded, on its way to a GAINS record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from torch import Tensor, nn

from gradwatch._faults import Faults
from gradwatch._recording.observer import Observer
from gradwatch._recording.pending import PendingRecord
from gradwatch._recording.readback import Readback
from gradwatch._recording.step_sample import StepSample
from gradwatch._statistics.capture import tell_captured
from gradwatch._statistics.devices import places_by_device
from gradwatch.gain_monitor import GradientGainMonitor
from gradwatch_wire import Column, Gains
from gradwatch_wire.columns import L2
from gradwatch_wire.names import Scalar

NORM_TYPE: Final = L2


class PendingGains(PendingRecord):
    """A GAINS record whose norms are on their way.

    Args:
        step: Optimizer step that they belong to.
        blocks: Names, input side first.
        norms: 0-d each on its device, None for a block where none was recorded.
    """

    def __init__(self, step: int, blocks: Sequence[str], norms: Sequence[Tensor | None]) -> None:
        self._blocks = tuple(blocks)
        recorded = [index for index, norm in enumerate(norms) if norm is not None]
        values = [norm for norm in norms if norm is not None]
        devices = list(places_by_device(values).values())
        self._indices = [[recorded[place] for place in places] for places in devices]
        own = [[values[place] for place in places] for places in devices]
        super().__init__(step, [Readback(each) for each in own])

    def _make(self) -> list[Gains]:
        norms = [math.nan] * len(self._blocks)
        for indices, readback in zip(self._indices, self._readbacks, strict=True):
            for index, norm in zip(indices, readback.read(), strict=True):
                norms[index] = norm
        column = Column.pack("<f8", norms)
        return [Gains(step=self.step, blocks=self._blocks, norm_type=NORM_TYPE, norms=column)]


class BlockGains(Observer):
    """Watches the outputs of named blocks; each collected step makes a record of its own.

    Args:
        blocks: Names to modules, input side first.
        put: Takes the record.
        faults: Where errors of the monitor's hooks end.
    """

    def __init__(
        self,
        blocks: Mapping[str, nn.Module],
        put: Callable[[PendingRecord], None],
        faults: Faults,
    ) -> None:
        self._names = list(blocks)
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
        """Whether the monitor records."""
        return self._monitor.active

    @active.setter
    def active(self, active: bool) -> None:
        self._monitor.active = active

    def forget(self) -> None:
        """Drop the norms."""
        self._monitor.reset()

    def after_step(self, sample: StepSample) -> None:
        """Hand over the norms recorded since the last step, if there are any."""
        norms = self._monitor.take()
        if self._monitor.was_captured:
            tell_captured(self._faults)
        if all(norm is None for norm in norms):
            return
        # Gradients at the blocks' outputs carry the loss scale, whatever was unscaled since.
        for scale in sample.device_scalars.get(Scalar.LOSS_SCALE, ()):
            norms = [None if norm is None else norm / scale.to(norm.device) for norm in norms]
        self._put(PendingGains(sample.step, self._names, norms))

    def close(self) -> None:
        """Remove the hooks."""
        self._monitor.close()
