"""Whether the model is in training mode: a pause in which it is not is an evaluation, no hang."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import nn


class TrainingMode:
    """The mode of some modules, which it does not keep alive."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = [weakref.ref(module) for module in modules]

    def is_training(self) -> bool | None:
        """Return whether any of them is in training mode, None if none is left.

        Called by the background thread: it reads a flag, and changes nothing.
        """
        modes = [module.training for ref in self._modules if (module := ref()) is not None]
        return any(modes) if modes else None
