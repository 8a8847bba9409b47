"""Calls that may hang: whoever waits for one goes on after a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from gradwatch_server.notify.notifiers.base import DeliveryError

DEADLINE_S: Final = 30.0
"""Seconds that a message may take in all: a receiver that sends single bytes keeps each timeout."""


class Deadline:
    """Runs calls in a thread of their own, one at a time.

    One that is given up cannot be ended. It holds its thread, and no other is started meanwhile,
    so that a receiver that hangs costs one thread, whatever comes.
    """

    def __init__(self, name: str, deadline_s: float = DEADLINE_S) -> None:
        """Run nothing yet."""
        self._name = name
        self._deadline_s = deadline_s
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], None]) -> None:
        """Wait for a call.

        Raises:
            DeliveryError: As the call does; if it takes too long, and if one before still runs.
        """
        if self._thread is not None:
            self._thread.join(self._deadline_s)
            if self._thread.is_alive():
                msg = "an earlier message is still on its way"
                raise DeliveryError(msg)
        failed: list[Exception] = []

        def work() -> None:
            try:
                call()
            except Exception as error:  # noqa: BLE001 - raised by who waits
                failed.append(error)

        self._thread = threading.Thread(target=work, name=self._name, daemon=True)
        self._thread.start()
        self._thread.join(self._deadline_s)
        if self._thread.is_alive():
            msg = f"it took longer than {self._deadline_s:g} s"
            raise DeliveryError(msg)
        self._thread = None
        if failed:
            raise failed[0]
