"""In which order modules are called, where the graph of a forward pass does not show it.

Inside a reentrant checkpoint the forward pass builds no graph. Hooks on the modules that own
parameters then note the first call of each, for one training step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from gradwatch._faults import Faults
from gradwatch._hooks.first_use import Moment
from gradwatch._hooks.module_hook import ModuleHook

BEFORE_GRAPH: Final = 0
"""Second element of a `Moment` that a call shows: the node of that number is made after it."""


class ModuleCalls:
    """Notes the first call of each module in each forward pass, until `close`.

    Args:
        owners: Modules to the layers that are their own parameters, in order of registration.
        faults: Where errors are noted.
    """

    def __init__(self, owners: Mapping[nn.Module, Sequence[int]], faults: Faults) -> None:
        self._owners = owners
        self._calls: dict[nn.Module, int] = {}  # module -> number of the next node of the graph
        self._handles: list[RemovableHandle] = [
            # One object each: Dynamo guards on what a hook shared between modules holds.
            module.register_forward_pre_hook(ModuleHook(self._note, faults))
            for module in owners
        ]

    def _note(self, module: nn.Module, _: object) -> None:
        is_in_backward = torch._C._current_graph_task_id() >= 0  # computed again, last block first
        if module not in self._calls and not is_in_backward:
            self._calls[module] = torch._C._autograd._get_sequence_nr()

    def take_moments(self) -> dict[int, Moment]:
        """Return when the module of each layer was first called, and forget it.

        What is called after this is of another forward pass, or of another part of this one.
        A module's parameters are in the order of their registration. One that has watched modules
        inside it uses its own before, between or after them: that is not known.
        """
        found: dict[int, Moment] = {}
        for module, number in self._calls.items():
            inner = set(module.modules()) - {module}
            if inner.isdisjoint(self._owners):
                for index in self._owners[module]:
                    found[index] = (number, BEFORE_GRAPH, len(found))
        self._calls.clear()
        return found

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
