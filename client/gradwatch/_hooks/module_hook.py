"""Hooks on modules that leave the module as usable as it was.

They can be pickled and copied with their module, hold nothing alive, are traced to nothing by
`torch.compile`, do nothing in a CUDA graph capture, and never raise into the forward pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from gradwatch._faults import Faults
from gradwatch._statistics.capture import in_capture


class ModuleHook:
    """A forward hook or forward pre-hook that passes on the module and what it got or returned.

    Args:
        listener: A bound method, held weakly, of a module and its arguments (pre-hook) or its
            output (hook).
        faults: Where errors of the listener are noted.
    """

    def __init__(self, listener: Callable[[nn.Module, object], None], faults: Faults) -> None:
        self._listener = weakref.WeakMethod(listener)
        self._faults = faults

    def __call__(self, module: nn.Module, *values: object) -> None:
        # A constant while tracing: nothing of what follows gets into a compiled graph.
        if torch.compiler.is_compiling():
            return
        listener = self._listener()
        if listener is not None and not in_capture(self._faults):
            with self._faults.noting("module hook"):
                listener(module, values[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave in a copy or a pickle something that does nothing, and needs no gradwatch."""
        return getattr, (nullcontext(), "__exit__")
