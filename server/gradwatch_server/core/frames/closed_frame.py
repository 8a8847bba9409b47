"""A frame as it is handed to what keeps the history, once all is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.frames.gains import GainFrame
from gradwatch_server.core.frames.layers import Layers


@dataclass(frozen=True, slots=True)
class ClosedFrame:
    """A closed frame, and what was found out about it.

    Args:
        score: Its health score, NaN where no layer is known.
        noise_scale: The gradient noise scale at it, None if it added nothing or is not known yet.
        layers: Layers of the attempt; the frame has a value for each.
        usual: (layers,) the usual L2 norm of each by then, NaN where it is not known.
        spread: (layers,) the factor by which a norm usually leaves it, 1.1 at least.
        after_ns: When the last record of the frame before came in, None of the first one.
    """

    frame: Frame
    epoch: int
    score: float
    skipped: bool
    noise_scale: float | None
    layers: Layers
    usual: FloatArray
    spread: FloatArray
    after_ns: int | None = None

    @property
    def ranks(self) -> Sequence[int]:
        return sorted({part.rank for part in self.frame.parts})

    @property
    def is_ordered(self) -> bool:
        """Order of the layers: true if all records have that of the forward pass."""
        return all(part.ordered for part in self.frame.parts)


class FrameRecorder(Protocol):
    """Recorder of closed frames."""

    def add(self, run: str, attempt: int, closed: ClosedFrame) -> None:
        """Take in the next frame of an attempt; it may have had it before a restart."""

    def add_gains(self, run: str, attempt: int, gains: GainFrame, epoch: int) -> None:
        """Accept the next gains of an attempt; gains have an order of steps of their own."""
