"""Who waits in the middle of a call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiter:
    """Waits for the code that calls something.

    Args:
        pass_by: Lets others go on for some seconds.
        point: Passes a point at which the node may be killed or paused.
    """

    pass_by: Callable[[float], None]
    point: Callable[[str], None]


class WaitedEvent(threading.Event):
    """An event for which a task waits in simulated time."""

    def __init__(self, turn: Callable[[], None], now_s: Callable[[], float]) -> None:
        """Begin unset.

        Args:
            turn: Gives others their turn.
            now_s: Tells the time, seconds.
        """
        super().__init__()
        self._turn = turn
        self._now_s = now_s

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or some time has passed."""
        until_s = self._now_s() + (timeout or 0.0)
        while not self.is_set() and self._now_s() < until_s:
            self._turn()
        return self.is_set()
