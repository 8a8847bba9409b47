"""End of a watch when nobody closes it: at exit, in multiprocessing children, after a fork."""

from __future__ import annotations

import atexit
import dis
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import util
from typing import Protocol

from gradwatch._transport.sender import JOIN_S


class Closable(Protocol):
    """Owner of resources that must end before the process does."""

    def disable(self) -> None:
        """Drop everything without a word: the process was forked."""


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a resource, in two parts, so that several end at the same time.

    Args:
        finish: Waits for the end, at most the seconds given.
    """

    begin: Callable[[str], object]
    finish: Callable[[float], object]


_live: dict[Closable, Ending] = {}  # strong: a watch that nobody holds goes on
_finalizers: list[util.Finalize] = []  # one, in multiprocessing children


def end_at_exit(watch: Closable, ending: Ending) -> None:
    """See to it that *watch* ends when this process ends by itself."""
    _live[watch] = ending
    atexit.unregister(_end_all)
    atexit.register(_end_all)  # anew: what came before this watch is still there when it ends
    if multiprocessing.parent_process() is not None and not _finalizers:
        # A multiprocessing child leaves through os._exit, which skips atexit.
        _finalizers.append(util.Finalize(None, _end_all, exitpriority=100))


def forget(watch: Closable) -> None:
    """Undo `end_at_exit`."""
    _live.pop(watch, None)
    if not _live:
        atexit.unregister(_end_all)
        while _finalizers:
            _finalizers.pop().cancel()


def end_reason() -> str:
    return "exception" if is_failing() else "closed"


def _end_all() -> None:
    """End all watches together: with nobody there each of them waits as long as it may."""
    reason, endings = end_reason(), list(_live.values())
    for ending in endings:
        ending.begin(reason)
    deadline_s = time.monotonic() + JOIN_S
    for ending in endings:
        ending.finish(deadline_s - time.monotonic())


def is_failing() -> bool:
    """Tell whether an exception is on its way through the caller, or ended the interpreter."""
    passing = sys.exc_info()[1]
    if passing is not None:
        return not isinstance(passing, (SystemExit, GeneratorExit)) and not _is_handled(passing)
    # An interactive session lives on after an exception that nothing caught.
    return not hasattr(sys, "ps1") and getattr(sys, "last_value", None) is not None


def _is_handled(error: BaseException) -> bool:
    """Tell whether the caller runs in an `except` that ends the exception, and not in a `finally`.

    Both look the same from here but for what comes next: either the exception is raised on, or its
    handling ends. A branch in the handler that decides between the two is read as it is written.
    """
    frame = None if error.__traceback__ is None else error.__traceback__.tb_frame
    if frame is None:
        return False
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset > frame.f_lasti:
            if instruction.opname in {"RERAISE", "RAISE_VARARGS"}:
                return False
            if instruction.opname == "POP_EXCEPT":
                return True
    return False


def _disable_all() -> None:
    """Run in a forked child: the thread is gone, and the inherited socket would swallow sends."""
    for watch in list(_live):
        watch.disable()
    _live.clear()
    _finalizers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disable_all)
