"""Forward order of the layers, read from the graphs of forward passes.

A hook on the model sees an output and reads its graph at once, until the order of all layers that
get gradients is known. Where the graph does not show a layer, the calls of modules are noted for a
step. What neither shows (a model compiled in place, the inside of a function compiled around the
model, a forward pass that takes another way each time) is not claimed to be known.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradwatch._faults import Faults
from gradwatch._hooks.first_use import Moment, first_uses, moments_of
from gradwatch._hooks.outputs import differentiable
from gradwatch._layers.layers import Layer
from gradwatch._layers.sharded_parameters import whole_parameters
from gradwatch._layers.wrappers import is_compiled, is_compiled_wrapper
from gradwatch._statistics.capture import in_capture

MAX_STEPS: Final = 16
"""Steps after which the search for the order of the layers with gradients ends."""

MAX_REPEATS: Final = 2
"""Graphs of one step that show nothing new: the rest of an accumulation shows nothing, either."""

MAX_GRAPHS: Final = 8
"""Orders that are kept: parts of a model that are trained in turn each have their own."""

MAX_ARRANGED: Final = 64
"""Sets of layers whose arrangement is remembered."""

BEFORE_GRAPH: Final = 0
"""Second element of a `Moment` that a call shows: the node of that number is made after it."""

Moments = dict[int, Moment]


class ModuleHook:
    """A forward hook or forward pre-hook that passes on the module and what it got or returned.

    It leaves the module as usable as it was: it can be pickled and copied with it, holds nothing
    alive, is traced to nothing by `torch.compile`, and never raises into the forward pass.

    Args:
        listener: A bound method, held weakly, of a module and its arguments (pre-hook) or its
            output (hook).
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


class ModuleCalls:
    """First call of each module in each forward pass, until `close`.

    Inside a reentrant checkpoint the forward pass builds no graph: the calls show the order there.

    Args:
        owners: Modules to the layers that are their own parameters, in order of registration.
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


class ForwardOrder:
    """Knows in which order the layers are first used, once a forward pass has shown it.

    Args:
        modules: The modules given to `attach`.
        faults: Where errors are noted; nothing is raised into the forward pass.
    """

    def __init__(
        self, modules: Sequence[nn.Module], layers: Sequence[Layer], faults: Faults
    ) -> None:
        self._modules = modules
        self._layers = layers
        self._faults = faults
        self._owners = self._find_owners()
        self._graphs: list[Moments] = []  # of earlier steps, the latest first
        self._current: Moments = {}  # of the running step, its graphs put together
        self._repeats = 0
        self._varies = False
        self._arranged: dict[tuple[int, ...], tuple[tuple[int, ...], bool]] = {}
        self._missed: set[int] = set()  # layers whose order was asked for and not known
        self._steps_left = MAX_STEPS
        self._looking = True
        self._wanted: set[tuple[int, ...]] = set()  # sets of layers without a known order
        self._was_asked = self._was_unknown = self._began_late = False  # in the running step
        self._read: set[nn.Module] = set()  # hooked modules whose output had a graph
        self._hooks: dict[nn.Module, RemovableHandle] = {}
        self._calls: ModuleCalls | None = None
        self._hook(modules)

    @property
    def is_looking(self) -> bool:
        """Search for the order: true while it goes on, and where compiled code may change it."""
        return self._looking or has_compiled()

    def read(self, output: object) -> None:
        """Read the graph of a loss or of a model's output, if any order is still to be found."""
        if self._looking and not self._varies and self._repeats < MAX_REPEATS:
            with self._faults.noting("forward order"):
                if tensors := list(differentiable(output)):
                    self._add(self._moments(tensors))

    def arrange(self, present: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
        """Return layers in forward order, and True; if it is not known as they are, and False.

        Args:
            present: Indices of the layers that have a gradient, in the order of registration.
        """
        arranged = self._arranged.get(present)
        if arranged is None:
            if len(self._arranged) >= MAX_ARRANGED:
                self._arranged.clear()
            arranged = self._arranged[present] = self._arrange(present)
        self._was_asked = True
        if not arranged[1]:
            self._look_for(present)
        return arranged

    def forget(self) -> None:
        """Find the order anew: layers have become others."""
        self._owners = self._find_owners()
        self._graphs.clear()
        self._current = {}
        for known in (self._arranged, self._missed, self._wanted):
            known.clear()
        self._steps_left, self._varies = MAX_STEPS, False
        if not self._looking:
            self._looking = self._began_late = True
            if not self._is_compiled():
                self._hook(self._modules)

    def _find_owners(self) -> dict[int, str]:
        return {i: layer.name.rpartition(".")[0] for i, layer in enumerate(self._layers)}

    def end_step(self) -> None:
        """Note that an optimizer has stepped: the graphs that follow are of the next step."""
        if not self._looking:
            return
        if self._current:
            self._keep(self._current)
            self._current = {}
        self._repeats = 0
        if self._began_late:  # the forward pass of this step was over
            self._began_late = False
        elif self._was_asked:  # otherwise there was no gradient: a warm-up, or an evaluation
            self._judge_step()
        self._read.clear()
        self._was_asked = self._was_unknown = False

    def close(self) -> None:
        """Remove the hooks."""
        self._looking = False
        self._unhook(self._hooks)
        if self._calls is not None:
            self._calls.close()

    def _judge_step(self) -> None:
        """Stop looking, or look deeper, by what the step has shown."""
        self._wanted = {each for each in self._wanted if not self._arrange(each)[1]}
        self._steps_left -= self._was_unknown
        self._looking = bool(self._wanted) and self._steps_left > 0 and not self._varies
        if not self._looking:
            self._wanted.clear()
        if self._calls is not None:
            self._calls.close()
            self._calls = None
        compiled = self._is_compiled()
        if self._looking and self._was_unknown:
            self._look_deeper(compiled=compiled)
        elif not self._looking and not compiled:
            self._unhook(self._hooks)

    def _keep(self, graph: Moments) -> None:
        others = [other for other in self._graphs if not other.keys() <= graph.keys()]
        self._graphs = [graph, *others][:MAX_GRAPHS]

    def _on_output(self, module: nn.Module, output: object) -> None:
        if not self._looking:
            return
        if next(differentiable(output), None) is not None:
            self._read.add(module)
            self.read(output)

    def _moments(self, outputs: Iterable[Tensor]) -> Moments:
        """Return when each watched layer was first used, of those that can be told."""
        uses = first_uses(outputs)
        numbers = {id(layer.parameter): i for i, layer in enumerate(self._layers)}
        inner = (module for top in self._modules for module in top.modules())
        for shard, whole in whole_parameters(inner):
            if id(shard) in numbers:
                numbers[id(whole)] = numbers[id(shard)]
        found = moments_of({numbers[p]: u for p, u in uses.items() if p in numbers}, self._owners)
        if self._calls is not None:
            shown = {numbers[parameter] for parameter in uses if parameter in numbers}
            called = self._calls.take_moments()
            found |= {i: moment for i, moment in called.items() if i not in shown}
        return found

    def _add(self, found: Moments) -> None:
        """Put a graph together with the others of its step."""
        known = self._current
        if not all(agree(graph, found) for graph in (known, *self._graphs)):
            # The forward pass takes another way each time: no order holds.
            self._varies = True
        elif found.keys() <= known.keys():
            self._repeats += 1
            return
        elif found.keys() >= known.keys():
            self._current = found
        else:
            merged = found | known  # numbers grow: what was there before is earlier
            if not agree(merged, found):
                self._keep(known)
                merged = found
            self._current = merged
        self._arranged.clear()

    def _arrange(self, present: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
        if not self._varies:
            for graph in (self._current, *self._graphs):
                if graph.keys() >= set(present):
                    return tuple(sorted(present, key=graph.__getitem__)), True
        return present, False

    def _look_for(self, present: tuple[int, ...]) -> None:
        """Look at the next forward passes, unless these layers were looked for in vain before."""
        tried = self._missed.issuperset(present)
        self._missed.update(present)
        self._was_unknown = True
        if not self._looking:
            if tried or self._varies:
                return
            self._steps_left = MAX_STEPS
            self._looking = self._began_late = True
            if not self._is_compiled():
                self._hook(self._modules)
        self._wanted.add(present)

    def _look_deeper(self, *, compiled: bool) -> None:
        """Look also where the outputs that were read do not show all.

        A model that is never called itself (`model.trunk(x)`, Lightning's `training_step`) calls
        its children. One that was called has parts without a graph.
        """
        # A leaf that was silent may speak in the next step: this one may have had no forward pass.
        silent = [m for m in self._hooks if m not in self._read and next(m.children(), None)]
        if compiled:
            # Other hooks that come or go would make the compiler start over.
            self._hook(inner for m in silent for inner in m.modules() if is_compiled_wrapper(inner))
            return
        self._unhook(silent)
        self._hook(child for module in silent for child in module.children())
        if self._read:
            self._calls = ModuleCalls(self._module_layers(), self._faults)

    def _module_layers(self) -> dict[nn.Module, list[int]]:
        """Return the watched layers that are a module's own parameters."""
        numbers = {id(layer.parameter): i for i, layer in enumerate(self._layers)}
        found: dict[nn.Module, list[int]] = {}
        placed: set[int] = set()
        for module in (module for top in self._modules for module in top.modules()):
            own = [numbers[id(p)] for p in module._parameters.values() if id(p) in numbers]
            for index in own:
                if index not in placed:  # a shared one stands under its first name
                    placed.add(index)
                    found.setdefault(module, []).append(index)
        return found

    def _hook(self, modules: Iterable[nn.Module]) -> None:
        for module in modules:
            # Lists and dicts of modules have no forward pass of their own.
            if getattr(module.forward, "__func__", None) is nn.Module.forward:
                self._hook(module.children())
            elif module not in self._hooks:
                hook = ModuleHook(self._on_output, self._faults)
                self._hooks[module] = module.register_forward_hook(hook)

    def _unhook(self, modules: Iterable[nn.Module]) -> None:
        for module in list(modules):
            self._hooks.pop(module).remove()

    def _is_compiled(self) -> bool:
        return is_compiled(self._modules) or has_compiled()


def agree(one: Mapping[int, Moment], other: Mapping[int, Moment]) -> bool:
    """Tell whether the layers that are in both come in the same order."""
    both = one.keys() & other.keys()
    return sorted(both, key=one.__getitem__) == sorted(both, key=other.__getitem__)


def has_compiled() -> bool:
    """Tell whether this process has compiled anything: the model may be a part of it."""
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    return dynamo is not None and getattr(dynamo, "FRAME_COUNTER", 1) > 0
