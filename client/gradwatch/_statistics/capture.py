"""CUDA graph captures: nothing is measured inside one.

The replays of what is enqueued there would write into memory that belongs to others by then. So
every hook and every call does nothing inside a capture.
"""

from __future__ import annotations

from typing import Final

import torch

from gradwatch._faults import Faults

CAPTURED: Final = (
    "a CUDA graph was captured; nothing is measured inside it, and its replays are not seen"
)


def is_capturing() -> bool:
    """Tell whether the current CUDA stream is captured now; never makes a CUDA context."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def in_capture(faults: Faults) -> bool:
    """Tell the same, and the user of the first time."""
    if not is_capturing():
        return False
    faults.tell_once("CUDA graph", CAPTURED)
    return True
