"""Activations: the largest magnitude in what modules return, and which of them was bad first.

Asked for with `attach(activations=...)`. A NaN that is born in the forward pass makes the loss and
then every gradient NaN, so that gradients cannot say where it began; the outputs of the modules
can. They are those of this rank, before any reduction.

Compiled, a hook writes into a tensor of its own: nothing in Python changes from call to call, so
that blocks of one kind go on sharing one graph, and nothing breaks it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any, Final

import torch
from torch import Tensor, nn

from gradwatch._faults import Faults
from gradwatch._hooks.order import has_compiled
from gradwatch._hooks.outputs import tensors_in
from gradwatch._layers.layers import Layer
from gradwatch._layers.modules import module_ranks
from gradwatch._pending.outputs import Calls, Habits
from gradwatch._recording.magnitudes import OutputMagnitudes
from gradwatch._recording.observer import Observer
from gradwatch._recording.step_sample import StepSample
from gradwatch._statistics.capture import in_capture
from gradwatch._statistics.devices import places_by_device
from gradwatch._statistics.gradients import dense
from gradwatch_wire.limits import MAX_MANIFESTS

_is_exporting: Final = getattr(torch.compiler, "is_exporting", lambda: False)  # torch 2.4: none


class ModuleOutputs:
    """Findings of the hook of one module.

    Args:
        listener: Held weakly: hooks must not keep the watch alive.

    Attributes:
        seen: (2,) float64: largest magnitude in compiled calls since it was zeroed, and how many
            calls these were.
    """

    def __init__(self, index: int, device: torch.device, listener: Activations) -> None:
        self.index = index
        self.seen = torch.zeros(2, dtype=torch.float64, device=device)
        from torch._dynamo import mark_static_address  # noqa: PLC0415 - takes a second to import

        # Otherwise a graph that writes into it could not be captured as a CUDA graph.
        mark_static_address(self.seen, guard=False)
        self.listener = weakref.ref(listener)


class OutputHook:
    """A forward hook of its own for each module: Dynamo guards on what hooks share."""

    def __init__(self, outputs: ModuleOutputs) -> None:
        self._outputs = outputs

    def __call__(self, module: nn.Module, _: object, output: object) -> None:
        if torch.compiler.is_compiling():
            # Constants while tracing. An exported program is to have nothing of ours in it.
            if module.training and torch.is_grad_enabled() and not _is_exporting():
                _measure(output, self._outputs.seen)
            return
        listener = self._outputs.listener()
        if listener is not None:
            listener.after_forward(self._outputs.index, output)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave in a copy or a pickle something that does nothing, and needs no gradwatch."""
        return getattr, (nullcontext(), "__exit__")


def is_measurable(tensor: Tensor) -> bool:
    """Tell whether a tensor has magnitudes: real floats, and more than none."""
    is_float = tensor.is_floating_point() and tensor.dtype.itemsize > 1
    return is_float and tensor.layout == torch.strided and tensor.numel() > 0


@torch.no_grad()
def _measure(output: object, seen: Tensor) -> None:
    """Write the largest magnitude in an output into *seen*, as a part of the graph."""
    was_measured = False
    for tensor in tensors_in(output):
        if not is_measurable(tensor):
            continue
        local = tensor.detach()
        if hasattr(local, "to_local"):
            local = local.to_local()
        if local.device == seen.device:
            low, high = torch.aminmax(local)
            largest = torch.maximum(-low, high).to(seen.dtype)
            seen[0].copy_(torch.maximum(seen[0], largest))
            was_measured = True
    if was_measured:
        seen[1].add_(1)


MAX_CALLS: Final = 1 << 14
"""Calls noted between two backward passes: a model may be called for ever without one."""

UNSEEN: Final = (
    "none of the chosen modules was seen to return anything in training mode; where the model is "
    "compiled, attach before its first call"
)

_AMBIGUOUS: Final = -1


class Activations(Observer):
    """Largest magnitudes in the outputs of modules, since the last sample.

    Args:
        tops: The watched models; what runs in evaluation mode is not measured.
        faults: Where errors are noted; nothing is raised into the forward pass.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        tops: Sequence[nn.Module],
        layers: Sequence[Layer],
        faults: Faults,
    ) -> None:
        self._modules = list(modules.values())
        self._tops = tops
        self._layers = layers
        self._faults = faults
        self._habits = Habits(len(modules), lambda: faults.note("activations", UNSEEN))
        self._has_contributed = False
        self._before: tuple[int, OutputMagnitudes] | None = None  # the last taken, of which step
        self._clock = count()
        self._calls: list[tuple[int, int | None, Tensor, Tensor]] = []
        self._is_complete = True
        self._measured: set[int] = set()  # modules whose output was measured before the backward
        self._without_graph: dict[int, int] = {}  # modules to when they returned without gradients
        self._ranks: dict[int, tuple[int | None, ...]] = {}  # by manifest
        self._outputs = [ModuleOutputs(i, self._own(m), self) for i, m in enumerate(self._modules)]
        self._handles = [
            module.register_forward_hook(OutputHook(outputs))
            for module, outputs in zip(self._modules, self._outputs, strict=True)
        ]

    def _own(self, module: nn.Module) -> torch.device:
        """Return the device on which a module's outputs will lie, as far as can be told."""
        parameters = (p for part in (module, *self._tops) for p in part.parameters())
        return next(parameters).device

    def after_forward(self, index: int, output: object) -> None:
        """Measure what a module has returned, outside of compiled graphs."""
        if not self.active or torch._C._get_tracing_state() is not None:
            return
        if any(top.training for top in self._tops) and not in_capture(self._faults):
            with self._faults.noting("activations"):
                self._note(index, output)

    def _note(self, index: int, output: object) -> None:
        now = next(self._clock)
        moment: int | None = now
        if torch._C._current_graph_task_id() >= 0:
            if index in self._measured:
                return  # recomputed by a checkpoint
            # A reentrant checkpoint runs without gradients first, and again in the backward pass.
            found = self._without_graph.get(index, _AMBIGUOUS)
            moment = None if found == _AMBIGUOUS else found
        elif not torch.is_grad_enabled():
            is_known = index in self._without_graph
            self._without_graph[index] = _AMBIGUOUS if is_known else now
            return
        else:
            self._measured.add(index)
        if len(self._calls) >= MAX_CALLS:
            self._calls.clear()
            self._is_complete = False
        for tensor in tensors_in(output):
            if is_measurable(tensor) and _is_at_hand(tensor):
                low, high = torch.aminmax(dense(tensor.detach()))
                self._calls.append((index, moment, low, high))

    @torch.no_grad()
    def contribute(self, sample: StepSample) -> None:
        """Add what was measured, and forget it."""
        is_compiled = has_compiled()
        with self._faults.noting("activations"):
            is_new = bool(self._calls) or is_compiled or not self._has_contributed
            taken = self._take(sample, is_compiled=is_compiled) if is_new else None
            self._has_contributed = True
            sample.outputs = taken
            if sample.parts > 1:
                self._share(sample, is_compiled=is_compiled)
        self.forget()

    def _share(self, sample: StepSample, *, is_compiled: bool) -> None:
        """Give a sample what another took of the same pass: it reaches several optimizers' layers.

        Without new calls it is the same pass; in compiled code it may be that before.
        """
        taken, before = sample.outputs, self._before
        is_near = before is not None and abs(before[0] - sample.step) <= 1
        if before is not None and is_near and (is_compiled or not self._calls):
            sample.outputs = before[1].empty()
            for each in (before[1], taken):
                if each is not None:
                    sample.outputs.add(each, sample.step)
        if taken is not None and (is_compiled or self._calls):
            self._before = (sample.step, taken)

    def _take(self, sample: StepSample, *, is_compiled: bool) -> OutputMagnitudes:
        taken = OutputMagnitudes(self._habits, is_complete=self._is_complete)
        # Where the order of all calls is known there is no need for them.
        is_ordered = not is_compiled and all(moment is not None for _, moment, _, _ in self._calls)
        nowhere = (None,) * len(self._modules)
        ranks = nowhere if is_ordered else self._find_ranks(sample)
        lows = [low for _, _, low, _ in self._calls]
        highs = [high for _, _, _, high in self._calls]
        for value in (*lows, *highs):
            if value.is_cuda:  # made on the stream of the forward pass
                value.record_stream(torch.cuda.current_stream(value.device))
        for places in places_by_device(lows).values():
            modules = tuple(self._calls[place][0] for place in places)
            calls = Calls(
                modules=modules,
                moments=tuple(self._calls[place][1] for place in places),
                ranks=tuple(ranks[module] for module in modules),
            )
            low = torch.stack([lows[place] for place in places])
            high = torch.stack([highs[place] for place in places])
            largest = torch.maximum(high, -low).to(torch.float64)
            taken.put(calls, torch.stack((largest, torch.ones_like(largest))))
        kept = [outputs.seen for outputs in self._outputs]
        for places in places_by_device(kept).values() if is_compiled else ():
            own = tuple(ranks[place] for place in places)
            calls = Calls(tuple(places), (None,) * len(places), own)
            taken.put(calls, torch.stack([kept[place] for place in places]).t())
        return taken

    def _find_ranks(self, sample: StepSample) -> tuple[int | None, ...]:
        """Return where each module stands in the forward pass by the layers in it."""
        found = self._ranks.get(sample.manifest_id)
        if found is None:
            layers = [self._layers[layer].parameter for layer in sample.layers]
            found = module_ranks(self._modules, layers if sample.is_ordered else [], self._tops)
            if len(self._ranks) == MAX_MANIFESTS:
                self._ranks.clear()
            self._ranks[sample.manifest_id] = found
        return found

    def forget(self) -> None:
        """Drop what was measured."""
        self._calls.clear()
        self._is_complete = True
        self._measured.clear()
        self._without_graph.clear()
        self._clock = count()
        if has_compiled():
            with torch.no_grad():
                torch._foreach_zero_([outputs.seen for outputs in self._outputs])

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.forget()


def _is_at_hand(tensor: Tensor) -> bool:
    """Tell whether a tensor outside of compiled graphs has numbers that may be read now."""
    return not (tensor.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(tensor))
