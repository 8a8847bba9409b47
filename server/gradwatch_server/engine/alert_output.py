"""What becomes of alerts: they are stored, then readers are told, and the ranks of their run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradwatch_server.clock import Clock
from gradwatch_server.core.state import State
from gradwatch_server.engine.alert_delivery import AlertChange, AlertDelivery
from gradwatch_server.engine.waiting_alerts import WaitingAlerts


class AlertOutput:
    """The alerts of one engine, in its thread.

    Args:
        state: Which runs are in memory.
        clock: Says when it is tried again to store them.
        waiting: Stores them.
        delivery: Tells ranks.
        retry: Calls what stores alerts until it can; returns False if the engine is stopped before.
        tell_readers: Gets the cursor of the newest alert that is stored.
    """

    def __init__(
        self,
        state: State,
        clock: Clock,
        waiting: WaitingAlerts,
        delivery: AlertDelivery,
        retry: Callable[[Callable[[], None]], bool],
        tell_readers: Callable[[int], None],
    ) -> None:
        self._state = state
        self._clock = clock
        self._waiting = waiting
        self._delivery = delivery
        self._retry = retry
        self._tell_readers = tell_readers
        self._withheld = False  # whether it was stopped before all were stored

    @property
    def is_stored(self) -> bool:
        """Whether all are stored that came of what was applied."""
        return not self._withheld and self._waiting.is_empty

    def add(self, alerts: Sequence[AlertChange]) -> None:
        """Store alerts, or let them wait for a store that is away as long as there is room."""
        self._waiting.add(alerts)
        while not self._waiting.is_empty:
            if not self._waiting.are_too_many:
                if self.is_due(now_ns := self._clock.now_ns()):
                    self.store_waiting(now_ns)
                return
            if not self._retry(lambda: self._tell(*self._waiting.store())):
                self._withheld = True
                return  # the log has what they were derived from: the next start stores them

    def is_due(self, now_ns: int) -> bool:
        """Tell whether some wait, and it is time to try to store them."""
        return self._waiting.is_due(now_ns)

    def store_waiting(self, now_ns: int) -> None:
        """Store those that wait if that can be done just now, and tell of them."""
        stored = self._waiting.try_to_store(now_ns)
        if stored is not None:
            self._tell(*stored)

    def _tell(self, changes: Sequence[AlertChange], cursor: int) -> None:
        self._tell_readers(cursor)
        # A run may have left memory while its alerts waited.
        self._delivery.tell(own for own in changes if own.alert.run in self._state.runs)
