"""Python stack of a training thread in which no step ends any more."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

from gradwatch_wire import Event
from gradwatch_wire.limits import MAX_STACK_BYTES
from gradwatch_wire.names import EventName

HANG_S: Final = 29.0
HANG_FACTOR: Final = 10.0
"""Seconds without a step, and times the usual ones: the aggregator tells of a hang after 30 s, and
has the stack by then."""

MIN_GAPS: Final = 5
MAX_GAPS: Final = 64
"""Steps from which on it is known how long they take, and those of which the median is taken."""

MAX_FRAMES: Final = 30


class HangWatch:
    """Notices in the background thread that no step ends, and reads the training thread's stack.

    Reading the stack takes the interpreter for some 20 microseconds, once in a hang.

    Args:
        step: Returns the step that is under way, None where nobody knows any more.
        now_s: Seconds of the monotonic clock.
    """

    def __init__(self, step: Callable[[], int | None], now_s: float) -> None:
        self._step = step
        self._gaps: deque[float] = deque(maxlen=MAX_GAPS)
        self._last: int | None = None
        self._since_s = now_s
        self._is_told = False

    def look(self, thread: int, now_s: float) -> Event | None:
        """Return the stack of a thread if no step has ended for long; once for each hang."""
        step = self._step()
        if step != self._last:
            if self._last is not None and step is not None:
                self._gaps.append((now_s - self._since_s) / max(step - self._last, 1))
            self._last, self._since_s, self._is_told = step, now_s, False
            return None
        if self._is_told or step is None or len(self._gaps) < MIN_GAPS:
            return None
        idle_s = now_s - self._since_s
        if idle_s <= HANG_S or idle_s <= HANG_FACTOR * median(self._gaps):
            return None
        self._is_told = True
        text = read_stack(thread)
        return Event(name=EventName.STACK, step=step, text=text) if text else None


def read_stack(thread: int) -> str:
    """Return the innermost 30 frames of a thread, a line each; empty if it has ended.

    A line is `function file:line`, the innermost first. The home folder is left out of file names.
    """
    frame = sys._current_frames().get(thread)
    home = f"{Path.home()}{os.sep}"
    lines: list[str] = []
    size = 0
    while frame is not None and len(lines) < MAX_FRAMES:
        code = frame.f_code
        line = f"{code.co_name} {code.co_filename.removeprefix(home)}:{frame.f_lineno}"
        size += len(line.encode()) + 1
        if size > MAX_STACK_BYTES:
            break
        lines.append(line)
        frame = frame.f_back
    return "\n".join(lines)
