"""Begin and end of an optimizer's `step`, whoever calls it and however it is wrapped."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from gradwatch._faults import Faults, tell
from gradwatch._hooks.backward import BackwardPasses
from gradwatch._hooks.untraced import untraced
from gradwatch._recording.overhead import MOST_S
from gradwatch._recording.recorder import Recorder
from gradwatch._recording.schedule import Rest, Schedule
from gradwatch._recording.step_history import learning_rate
from gradwatch._statistics.capture import in_capture


class OptimizerSteps:
    """Hooks around `step` of each optimizer, and of one that is made in its place later.

    Args:
        optimizers: Unwrapped ones; see `unwrapped`. One that is replaced is replaced there, too.
        recorder: Its windows are told of their steps by number; held weakly.
        passes: Counts skipped steps while steps are only counted.
    """

    def __init__(
        self,
        optimizers: list[Optimizer],
        recorder: Recorder,
        schedule: Schedule,
        passes: BackwardPasses,
        faults: Faults,
        watched: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        self._optimizers = optimizers
        self._watched = watched
        self._strangers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._listener: Callable[[], Recorder | None] = weakref.ref(recorder)
        self._schedule = schedule
        self._passes = passes
        self._rest: Rest | None = None
        self._faults = faults
        self._handles = [
            self._around(number, optimizer) for number, optimizer in enumerate(optimizers)
        ]
        self._of_all: RemovableHandle | None = None
        if optimizers:
            self._of_all = register_optimizer_step_pre_hook(_meeting(self))

    def disable(self) -> None:
        """Tell nobody from here on; the hooks stay."""
        self._listener = _nobody

    def close(self) -> None:
        """Remove the hooks."""
        self.disable()
        for handle in [handle for own in self._handles for handle in own]:
            handle.remove()
        self._handles.clear()
        if self._of_all is not None:
            self._of_all.remove()

    def meet(self, optimizer: Optimizer) -> None:
        """Look at an optimizer that steps: one that trains what a watched one did takes its place.

        Its own hooks run in this very step already: they come after those of all optimizers.
        """
        for each in self._optimizers:
            if optimizer is each:
                return
        if optimizer in self._strangers:
            return
        if self._listener() is None:
            return
        number = self._find_replaced(optimizer)
        is_inner = _runs_within(self._optimizers)
        if number is None or is_inner:
            self._strangers.add(optimizer)
            if not is_inner:
                self._tell_stranger(optimizer)
            return
        for handle in self._handles[number]:
            handle.remove()
        self._optimizers[number] = optimizer
        self._handles[number] = self._around(number, optimizer)
        kind = type(optimizer).__name__
        tell(logging.INFO, f"another {kind} has taken the place of optimizer {number}")

    def _tell_stranger(self, optimizer: Optimizer) -> None:
        count = len(_parameters_of(optimizer) & self._watched())
        if count:
            self._faults.tell_once(
                "another optimizer",
                f"optimizer: one that attach was not given, {type(optimizer).__name__}, steps "
                f"{count} of the model's parameters, and its steps are not seen; pass it too",
            )

    def _find_replaced(self, optimizer: Optimizer) -> int | None:
        """Return which watched optimizer has most of its parameters in this one, if any has."""
        own = _parameters_of(optimizer)
        watched = map(_parameters_of, self._optimizers)
        shared = [len(own & theirs) / len(theirs) for theirs in watched]
        most = max(shared)
        return shared.index(most) if most > 0.5 else None

    def _around(self, number: int, optimizer: Optimizer) -> list[RemovableHandle]:
        # The number is bound here: wrappers hand their inner optimizer to hooks, or themselves.
        def before(_: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            if self._rest is None:
                self._begin_step(number, has_closure=_has_closure(args, kwargs))

        def after(_: Optimizer, _args: object, _kwargs: object) -> None:
            if self._rest is None:
                self._end_step(number)
            else:
                self._count(self._rest)

        return [
            optimizer.register_step_pre_hook(untraced(before)),
            optimizer.register_step_post_hook(untraced(after)),
        ]

    def _begin_step(self, number: int, *, has_closure: bool) -> None:
        recorder = self._listener()
        if recorder is None or in_capture(self._faults):
            return
        self._schedule.enter()
        try:  # a context manager of Python would take as long as all the rest
            recorder.windows.begin_step(
                number, has_closure=has_closure, is_nested=_is_nested, is_artificial=_is_artificial
            )
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("optimizer step", repr(error))
        self._schedule.leave()

    def _end_step(self, number: int) -> None:
        recorder = self._listener()
        if recorder is None or in_capture(self._faults):
            return
        self._schedule.enter()
        try:
            rest = recorder.windows.end_step(number)
            if rest is not None:
                self._begin_rest(rest, recorder)
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("optimizer step", repr(error))
        self._schedule.leave()

    def _begin_rest(self, rest: Rest, recorder: Recorder) -> None:
        """Only count from here on, if that can be done."""
        if self._passes.count_only(rest, recorder.main_module):
            self._rest = rest
            me = weakref.ref(self)  # the hook that counts holds the rest, and must reach no model

            def end() -> None:
                if (steps := me()) is not None:
                    steps._wake(rest)

            rest.end = end
        else:
            rest.is_broken = True  # gradients that no pass has left, as those written by hand
            recorder.wake(rest)

    def _count(self, rest: Rest) -> None:
        """Count a step, and end the rest if it is over or broken."""
        if not rest.has_pass:
            if _is_artificial():
                return
            rest.is_broken = True
        rest.has_pass = False
        rest.num_steps += 1
        now_s = rest.end_step(learning_rate(self._optimizers[0]))
        if rest.step >= rest.until or rest.is_broken:
            self._wake(rest)
        elif now_s - rest.began_s > MOST_S / 2:
            rest.until = rest.step + 1

    def _wake(self, rest: Rest) -> None:
        began_s = self._schedule.clock()
        self._rest = None
        try:
            self._passes.resume()
            recorder = self._listener()
            if recorder is not None:
                rest.wake_s = self._schedule.clock() - began_s
                recorder.wake(rest)
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("optimizer step", repr(error))


def _nobody() -> None:
    return None


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer in the wrappers of Accelerate, Lightning and others."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def _has_closure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    # args[0] is the optimizer itself.
    given = args[1] if len(args) > 1 else kwargs.get("closure")
    return callable(given)


def _is_nested() -> bool:
    """Tell whether the hook that asks runs within another `step` of the same optimizer.

    A subclass that calls `super().step()` runs the hooks twice, if its parent was ever
    instantiated. Asked only when a step seems to be running: that is also so after one raised.
    """
    running = _running_steps()
    return len(running) > 1 and any(other is running[0] for other in running[1:])


def _runs_within(optimizers: Sequence[Optimizer]) -> bool:
    """Tell whether one of them is stepping: they may use others inside, as SAM does."""
    return any(running is each for running in _running_steps() for each in optimizers)


def _running_steps() -> list[object]:
    """Return the optimizers whose `step` is running, the innermost first."""
    running: list[object] = []
    for frame in _callers():
        if frame.f_code.co_name == "wrapper" and "profile_hook_step" in frame.f_code.co_qualname:
            args = frame.f_locals.get("args")
            if args:
                running.append(args[0])
    return running


def _is_artificial() -> bool:
    """Tell whether a distributed checkpoint steps only to make the optimizer's state."""
    return any(frame.f_code.co_name == "_init_optim_state" for frame in _callers())


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _parameters_of(optimizer: Optimizer) -> frozenset[int]:
    return frozenset(id(p) for group in optimizer.param_groups for p in group["params"])


def _meeting(steps: OptimizerSteps) -> Callable[..., None]:
    """Return a hook of all optimizers; it is torch's own, and must not keep a watch alive."""
    known = weakref.ref(steps)

    def hook(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        me = known()
        if me is None:
            return
        try:
            me.meet(optimizer)
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            me._faults.note("optimizer step", repr(error))

    return untraced(hook)
