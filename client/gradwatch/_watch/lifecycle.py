"""How a watch ends when nobody closes it: at exit, in multiprocessing children, after a fork."""

from __future__ import annotations

import atexit
import dis
import multiprocessing
import os
import sys
import weakref
from multiprocessing import util
from typing import Protocol


class Closable(Protocol):
    """What has to end before the process does."""

    def close(self) -> None:
        """End it, in bounded time."""

    def disable(self) -> None:
        """Drop everything without a word: the process was forked."""


_live: weakref.WeakSet[Closable] = weakref.WeakSet()
_finalizers: weakref.WeakKeyDictionary[Closable, util.Finalize] = weakref.WeakKeyDictionary()


def close_at_exit(watch: Closable) -> None:
    """See to it that *watch* is closed when this process ends by itself."""
    _live.add(watch)
    atexit.register(watch.close)
    if multiprocessing.parent_process() is not None:
        # A multiprocessing child leaves through os._exit, which skips atexit.
        _finalizers[watch] = util.Finalize(watch, watch.close, exitpriority=100)


def forget(watch: Closable) -> None:
    """Undo `close_at_exit`."""
    _live.discard(watch)
    atexit.unregister(watch.close)
    if (finalizer := _finalizers.pop(watch, None)) is not None:
        finalizer.cancel()


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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disable_all)
