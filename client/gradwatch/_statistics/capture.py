"""CUDA graph captures: what is enqueued inside one runs in its replays, where nobody can see it.

A replay would write its numbers into memory that belongs to others by then, and runs no hook. So
hooks do nothing inside a capture, and what a replay has left in the gradients is measured by
`collect()`.
"""

from __future__ import annotations

from typing import Final

import torch

from gradwatch._faults import Faults

_KIND: Final = "CUDA graph"

CAPTURED: Final = (
    "a CUDA graph was captured; gradients inside its replays are not seen: call collect() after "
    "the replay"
)


def is_capturing() -> bool:
    """Tell whether the current CUDA stream is captured now; never makes a CUDA context."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def in_capture(faults: Faults) -> bool:
    """Tell the same, and the user of the first time."""
    if not is_capturing():
        return False
    tell_captured(faults)
    return True


def is_refused(faults: Faults) -> bool:
    """Tell the same of a call that the training script makes, each of which is counted."""
    if not in_capture(faults):
        return False
    faults.note("capture", "collecting inside a CUDA graph capture; do it around it")
    return True


def tell_captured(faults: Faults) -> None:
    """Tell, once, that there was a capture."""
    faults.tell_once(_KIND, CAPTURED)


def has_captured(faults: Faults) -> bool:
    """Tell whether `in_capture` was ever true: from then on replays may change gradients.

    They change no version counter of a tensor, and run no hook.
    """
    return faults.has_told(_KIND)
