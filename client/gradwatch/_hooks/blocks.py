"""Block gains of a watched model: what the monitor recorded, on its way to a GAINS record."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from gradwatch._faults import Faults
from gradwatch._pending.gains import NORM_TYPE, PendingGains
from gradwatch._pending.record import PendingRecord
from gradwatch._recording.observer import Observer
from gradwatch._recording.readback import Readback
from gradwatch._recording.step_sample import StepSample
from gradwatch.gain_monitor import GradientGainMonitor
from gradwatch_wire.names import Scalar


class BlockGains(Observer):
    """Watches the outputs of named blocks; each collected step makes a record of its own.

    Args:
        blocks: Names to modules, input side first.
        readback: Copies the norms to the host.
        put: Takes the record.
        faults: Where errors of the monitor's hooks end.
    """

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
        recorded = [index for index, norm in enumerate(norms) if norm is not None]
        if not recorded:
            return
        # Gradients at the blocks' outputs carry the loss scale, whatever was unscaled since.
        scale = sample.device_scalars.get(Scalar.LOSS_SCALE, ())
        values = self._readback.start([*(norm for norm in norms if norm is not None), *scale])
        self._put(PendingGains(sample.step, self._names, recorded, values))

    def close(self) -> None:
        """Remove the hooks."""
        self._monitor.close()
