"""A block in which torch refuses to wait for a CUDA device."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def refusing_waits() -> Iterator[None]:
    """Make any wait for the device an error, until the end of the block, however it ends."""
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            # torch says once per process that the mode is a prototype, and sets it after that.
            warnings.filterwarnings("ignore", message=".*debug mode is a prototype")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
