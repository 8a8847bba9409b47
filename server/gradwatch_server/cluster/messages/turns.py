"""The engines of a node take turns: Python runs one thread at a time, however many want to run.

Many that work at once hold each other up in the middle of everything, and those that bring messages
as well: each finds little that has come, and writing to the log costs as much for one record as for
a hundred. Who waits for its turn before it looks finds more.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

HOLD_S: Final = 0.1
"""How long a turn lasts while others wait: who waits itself, for whatever it is, holds up nobody
for longer."""


class Turn:
    """What one engine waits for, or has. One thread uses it.

    Args:
        turns: Those of all.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.given = threading.Event()
        self.since_s = 0.0

    def begin(self) -> None:
        """Wait for the turn, unless it has begun."""
        if not self.given.is_set():
            self._turns.begin(self)

    def end(self) -> None:
        """Let others work, if it has begun."""
        if self.given.is_set():
            self.given.clear()
            self._turns.end(self)


class Turns:
    """One at a time, in the order in which they asked. All methods are for any thread.

    Args:
        hold_s: How long a turn lasts while others wait.
    """

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._lock = threading.Lock()
        self._current: Turn | None = None
        self._waiting: deque[Turn] = deque()

    def begin(self, turn: Turn) -> None:
        """Wait until it is the turn of one."""
        with self._lock:
            self._waiting.append(turn)
            if self._current is None:
                self._next()
        while not turn.given.wait(self._hold_s):
            with self._lock:
                current = self._current
                if current is None or time.monotonic() - current.since_s >= self._hold_s:
                    self._next()

    def end(self, turn: Turn) -> None:
        """Give the turn to the next one, unless it was taken away meanwhile."""
        with self._lock:
            if self._current is turn:
                self._next()

    def _next(self) -> None:
        self._current = self._waiting.popleft() if self._waiting else None
        if self._current is not None:
            self._current.since_s = time.monotonic()
            self._current.given.set()
