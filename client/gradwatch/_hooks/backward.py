"""The end of a backward pass: the point at which all gradients are complete and reduced.

A hook on a few parameters queues a callback in the autograd engine. Where ranks reduce, the
callback queues itself once more: it then runs after those of DDP and FSDP, which finish the
reduction, and before `backward()` returns. It does not matter who calls `backward()`.

Known besides is whether a pass began on fresh gradients (none, or zeroed since the last pass) or
added to those of the pass before, and in the first case whether the parameters have changed since:
methods that look ahead (SAM, extragradient) run two passes at different weights in one step.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle, unserializable_hook

from gradwatch._faults import Faults
from gradwatch._hooks.untraced import untraced
from gradwatch._recording.schedule import Rest, Schedule
from gradwatch._statistics.capture import in_capture
from gradwatch._statistics.gradients import SMALL_DTYPES

MAX_TRIGGERS: Final = 3
"""Hooked parameters per owner: their cost does not grow with the model."""

MAX_PROBED: Final = 16_384
"""Elements of a gradient that is looked at while steps are only counted, at most."""

MAX_OPEN_PASSES: Final = 64
"""Passes noted as running; more are left over from passes that raised."""

OnEnd = Callable[[Mapping[int, bool], Callable[[int], bool], Callable[[int], bool]], None]

_graph_task: Final[Callable[[], int]] = torch._C._current_graph_task_id
"""Number of the running backward pass, unique and growing; -1 outside."""


class BackwardPasses:
    """Calls *on_end* once at the end of each outermost backward pass.

    A pass that is captured into a CUDA graph computes nothing, and is none. One inside another one
    (reentrant checkpointing) ends with the one around it. `autograd.grad`
    and `backward(inputs=...)` on other tensors accumulate nothing and are no pass.

    Args:
        on_end: A bound method, held weakly: hooks on parameters must not keep the watch, and with
            it the model, alive. It gets the owners whose parameters the pass reached and whether
            it began on fresh gradients of each, and what tells of an owner whether its parameters
            have changed, and whether the pass has added to gradients that were not zero.
        faults: Where errors are noted; nothing is raised into the backward pass.
    """

    def __init__(self, on_end: OnEnd, schedule: Schedule, faults: Faults) -> None:
        self._on_end = weakref.WeakMethod(on_end)
        self._schedule = schedule
        self._faults = faults
        self._counting: RemovableHandle | None = None
        self._open: dict[int, object] = {}  # graph task -> a token of whoever noted it
        self._fresh: dict[int, dict[int, bool]] = {}  # graph task -> owner -> whether fresh
        self._triggers: list[_Trigger] = []
        self._active = True

    def watch(self, owner: int, parameters: Sequence[Tensor]) -> None:
        """Hook a few of an owner's parameters, spread over all.

        Those that were hooked before and are still among them stay so. Where none of them has a
        gradient and another parameter has, that one is hooked, too: passes may reach no other.

        Args:
            owner: A number that stands for these parameters, such as an optimizer's.
            parameters: Parameters to hook; one that cannot get a gradient is left out.
        """
        leaves = [p for p in parameters if p.requires_grad and p.is_leaf]
        mine = {id(parameter) for parameter in parameters}
        for trigger in [each for each in self._triggers if each.owner == owner]:
            if id(trigger.parameter) not in mine:
                trigger.remove()
                self._triggers.remove(trigger)
        hooked = {id(each.parameter) for each in self._triggers if each.owner == owner}
        chosen = _spread(leaves, MAX_TRIGGERS)
        own = [each.parameter for each in self._triggers if each.owner == owner]
        if all(parameter.grad is None for parameter in own + chosen):
            chosen += [parameter for parameter in leaves if parameter.grad is not None][:1]
        for parameter in chosen:
            if id(parameter) not in hooked:
                self._triggers.append(_Trigger(self, owner, parameter))

    def count_only(self, rest: Rest, module: nn.Module) -> bool:
        """Put one hook in place of all, which counts steps that are skipped, until `resume`.

        A pass on fresh gradients though no step was taken since the one before: that is a step
        which was skipped. Gradients are fresh if they are other tensors than before.

        Args:
            rest: Where it counts.
            module: A pass without a step is no step that was skipped if it is in evaluation mode.

        Returns:
            Whether that can be done: a pass has reached some hooked parameter on the CPU.
        """
        reached = [each for each in self._triggers if each.task >= 0 and each.parameter.is_cpu]
        if not reached:
            return False
        newest = max(map(attrgetter("task"), reached))
        reached = [each for each in reached if each.task == newest]
        small = [each for each in reached if each.parameter.numel() <= MAX_PROBED]
        chosen = (small or reached)[0]  # of the first layers, which the backward pass reaches last
        for trigger in self._triggers:
            trigger.remove()
        rest.probes = rest.probes and bool(small) and not rest.has_closure
        probe = partial(_probe, rest, chosen.owner, weakref.WeakMethod(self._wake))
        count = _counting(rest, weakref.ref(module), probe)
        hook = unserializable_hook(untraced(count))
        self._counting = chosen.parameter.register_post_accumulate_grad_hook(hook)
        return True

    def _wake(self, rest: Rest, owner: int) -> None:
        """End a rest in the middle of a pass, whose end is told as that of any other."""
        rest.end()
        task = _graph_task()
        self._fresh.setdefault(task, {})[owner] = True
        self._ask(task)

    def resume(self) -> None:
        """Put all hooks back in place of the one that counts."""
        if self._counting is not None:
            self._counting.remove()
            self._counting = None
            for trigger in self._triggers:
                trigger.hook(self)
                trigger.note()  # the pass may be one whose step is still to come

    def disable(self) -> None:
        """Tell nobody from here on; the hooks stay."""
        self._active = False

    def close(self) -> None:
        """Remove the hooks."""
        self._active = False
        if self._counting is not None:
            self._counting.remove()
        for trigger in self._triggers:
            trigger.remove()
        self._triggers.clear()

    def note_fresh(self, trigger: _Trigger, parameter: Tensor) -> None:
        """Note, before accumulation, whether the running pass began on fresh gradients."""
        task = _graph_task()
        found = self._fresh.get(task)
        if found is None:  # a pass is captured as a whole, or not
            if in_capture(self._faults):
                return
            if len(self._fresh) > MAX_OPEN_PASSES:
                self._fresh.clear()  # `autograd.grad` comes here, too, and has no end
            found = self._fresh.setdefault(task, {})
        trigger.task = task
        trigger.look(parameter)
        if not found.get(trigger.owner, False):
            fresh = trigger.is_fresh(parameter, trust_version=not self._has_dead(task))
            found[trigger.owner] = found.get(trigger.owner, False) or fresh

    def touch(self, trigger: _Trigger, parameter: Tensor) -> None:
        """Note that the running pass reached a parameter, and ask to be told of its end."""
        task = _graph_task()
        if task < 0 or not self._active:
            return
        found = self._fresh.get(task)
        if found is None:
            if in_capture(self._faults):
                return
            found = self._fresh.setdefault(task, {})
        if trigger.task != task:  # hooks before accumulation do not run on FSDP2's parameters
            trigger.task, trigger.has_added = task, False  # what was there before is not known
            found[trigger.owner] = found.get(trigger.owner, False) or trigger.is_another(parameter)
        found.setdefault(trigger.owner, False)
        if task not in self._open:  # nearly always: the first of several has asked
            self._ask(task)

    def _ask(self, task: int) -> None:
        token = object()
        if len(self._open) > MAX_OPEN_PASSES:
            self._open.clear()
        # `setdefault` is atomic: hooks of one pass may run in several threads.
        if self._open.setdefault(task, token) is token:
            # What finishes a reduction over ranks is queued as well: go behind it.
            is_reduced = torch.distributed.is_available() and torch.distributed.is_initialized()
            _queue(partial(BackwardPasses._later, self, task, int(is_reduced)))

    @untraced
    def _later(self, task: int, again: int) -> None:
        """Run in the engine once the pass is over, or after the callbacks that ran at its end."""
        if again:
            _queue(partial(BackwardPasses._later, self, task, again - 1))
            return
        self._open.pop(task, None)
        found = self._fresh.pop(task, {})
        around = torch._C._current_autograd_node()
        if around is not None and self._hand_over(around, found):
            return
        for dead in [other for other in self._fresh if other < task]:
            self._fresh.pop(dead, None)
            self._open.pop(dead, None)
        self._tell(self._with_unreached(task, found))

    def _with_unreached(self, task: int, found: Mapping[int, bool]) -> dict[int, bool]:
        """Add what the parameters show that this pass did not reach: they may have been zeroed."""
        fresh = dict(found)
        for trigger in self._triggers:
            if trigger.task < task and not fresh.get(trigger.owner, True):
                fresh[trigger.owner] = trigger.was_dropped()
        return fresh

    def _hand_over(self, around: torch.autograd.graph.Node, found: dict[int, bool]) -> bool:
        """Let the pass around a nested one go on with what the nested one found."""
        nearest = next((node for node, _ in around.next_functions if node is not None), None)
        if nearest is None:
            return False

        def go_on(*_: object) -> None:
            handle.remove()
            task = _graph_task()
            mine = self._fresh.setdefault(task, {})
            for owner, fresh in found.items():
                mine[owner] = mine.get(owner, False) or fresh
            self._ask(task)

        handle = nearest.register_prehook(untraced(go_on))
        return True

    def _tell(self, found: Mapping[int, bool]) -> None:
        on_end = self._on_end()
        if on_end is None or not found or not self._active or in_capture(self._faults):
            return
        self._schedule.enter()
        try:
            if torch.is_grad_enabled():
                with torch.no_grad():
                    on_end(found, self._has_moved, self._has_added)
            else:
                on_end(found, self._has_moved, self._has_added)
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("backward", repr(error))
        for trigger in self._triggers:
            if trigger.owner in found:
                trigger.note()
        self._schedule.leave()

    def _has_moved(self, owner: int) -> bool:
        """Tell whether an owner's parameters have changed since the last pass that has ended."""
        return any(each.has_moved for each in self._triggers if each.owner == owner)

    def _has_added(self, owner: int) -> bool:
        """Tell whether the last pass that reached an owner found gradients that were not zero."""
        own = [each for each in self._triggers if each.owner == owner]
        newest = max((each.task for each in own), default=-1)
        return any(each.has_added for each in own if each.task == newest)

    def _has_dead(self, task: int) -> bool:
        return any(other < task for other in self._open)


class _Trigger:
    """One hooked parameter: it starts the question, and remembers the gradient that it had."""

    def __init__(self, passes: BackwardPasses, owner: int, parameter: Tensor) -> None:
        self.owner = owner
        # Its hooks do not reach it from here but weakly. A weak reference to the parameter itself
        # would make `torch.utils.swap_tensors` refuse it, and with it `model.to(...)`.
        self.parameter = parameter
        self._grad: weakref.ref[Tensor] | None = None
        self._version = self._parameter_version = -1
        self.task = -1  # the last pass that reached it
        self.has_added = False  # whether that found a gradient of the pass before, not all zero
        self._handles: list[RemovableHandle] = []
        self.hook(passes)

    def hook(self, passes: BackwardPasses) -> None:
        """Hook the parameter; what its gradient was is not known."""
        self._grad = None
        self._parameter_version = -1
        known = weakref.ref(passes)
        me = weakref.ref(self)

        # Asked before accumulation: afterwards a hook of the script may have written to it.
        def before(_: Tensor) -> None:
            passes, trigger = known(), me()
            if passes is not None and trigger is not None:
                passes.note_fresh(trigger, trigger.parameter)

        def after(reached: Tensor) -> None:
            passes, trigger = known(), me()
            if passes is not None and trigger is not None:
                passes.touch(trigger, reached)

        self._handles = [
            self.parameter.register_hook(unserializable_hook(untraced(before))),
            self.parameter.register_post_accumulate_grad_hook(untraced(after)),
        ]

    def is_fresh(self, parameter: Tensor, *, trust_version: bool) -> bool:
        """Tell, before accumulation, whether the gradient was dropped or zeroed since the end.

        A parameter that had none at the end of the last pass says nothing.
        """
        if self._grad is None:
            return False
        grad = parameter.grad
        if grad is None or self._grad() is not grad:
            return True
        return trust_version and not grad._is_view() and grad._version != self._version

    def look(self, parameter: Tensor) -> None:
        """Look, before accumulation, whether a pass adds to what the one before left behind."""
        grad, self.has_added = parameter.grad, False
        if grad is None or self._grad is None or self._grad() is not grad:
            return  # nearly always: gradients are dropped
        if not self.has_moved or grad.layout is not torch.strided:
            return  # the next micro-batch, or of a kind that is not looked at
        if grad.is_cpu and grad.numel() <= MAX_PROBED and grad.dtype in SMALL_DTYPES:
            self.has_added = bool(grad.detach().count_nonzero().item())
        else:  # to look at it would take long, or be a wait
            self.has_added = not grad._is_view() and grad._version == self._version

    def is_another(self, parameter: Tensor) -> bool:
        """Tell, after accumulation, whether the gradient is another tensor than at the end."""
        return self._grad is not None and self._grad() is not parameter.grad

    def was_dropped(self) -> bool:
        """Tell, of a parameter that no pass has reached since, whether its gradient is gone."""
        return self.is_fresh(self.parameter, trust_version=True)

    def note(self) -> None:
        """Remember the gradient as it is at the end of a pass."""
        grad = self.parameter.grad
        self._parameter_version = self.parameter._version
        if grad is None:
            self._grad = None
        else:
            self._grad, self._version = weakref.ref(grad), grad._version

    @property
    def has_moved(self) -> bool:
        """Change of the parameter: true if it was written to since the end of the last pass."""
        return self._parameter_version not in {-1, self.parameter._version}

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def _counting(
    rest: Rest, module: weakref.ref[nn.Module], probe: Callable[[Tensor], None]
) -> Callable[[Tensor], None]:
    """Return a hook that counts passes; see `BackwardPasses.count_only`."""
    known: Callable[[], Tensor | None] = lambda: None  # noqa: E731 - stands for a weak reference
    was_training, version = False, -1

    def count(reached: Tensor) -> None:
        nonlocal known, was_training, version
        gradient = reached.grad
        if gradient is None:
            rest.is_broken = True
            return
        is_another = known() is not gradient
        if not rest.has_pass:
            rest.has_pass = True
            if not is_another:  # zeroed where it is, it seems: what is skipped cannot be told
                rest.is_broken = True
        elif not is_another:
            if was_training and rest.probes:
                probe(gradient)  # of another micro-batch
            return
        elif rest.has_closure or version != reached._version:
            rest.is_broken = True  # the same step at other weights, which it was not before
        elif was_training:
            rest.end_step(None, is_skipped=True)
        known, version = weakref.ref(gradient), reached._version
        owner = module()
        was_training = owner is not None and owner.training
        if was_training and rest.probes:
            probe(gradient)

    return count


def _probe(
    rest: Rest,
    number: int,
    wake: Callable[[], Callable[[Rest, int], None] | None],
    gradient: Tensor,
) -> None:
    """End a rest for a gradient that is NaN or Inf, unless those before it were so, too."""
    # A sum overflows where the elements are huge, which is alarming as well.
    is_alarming = not math.isfinite(gradient.sum().item())
    if rest.alarms.ring(is_alarming=is_alarming) and (waking := wake()) is not None:
        waking(rest, number)


def _queue(callback: Callable[[], None]) -> None:
    # `torch.autograd.graph.queue_callback` is public from torch 2.15 on.
    Variable._execution_engine.queue_callback(callback)


def _spread(items: Sequence[Tensor], most: int) -> list[Tensor]:
    """Return at most so many items, the first and the last among them, evenly spread."""
    if len(items) <= most:
        return list(items)
    stride = (len(items) - 1) / (most - 1)
    return [items[round(number * stride)] for number in range(most)]
