"""Something that a node does again and again, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Repeating:
    """A thread that goes on also after an error that nobody expected.

    Args:
        name: What the thread and its errors are called.
        work: What is done, at once and then again and again.
        every_s: The pause between two times, shorter if it is woken.
        stop_s: How long `stop` waits for what is being done; None for as long as it takes.
    """

    def __init__(
        self, name: str, work: Callable[[], object], every_s: float, stop_s: float | None = None
    ) -> None:
        self._name, self._work = name, work
        self._every_s, self._stop_s = every_s, stop_s
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gradwatch-{name}", daemon=True)

    @property
    def is_stopping(self) -> bool:
        """Whether it is not to be begun with anything more."""
        return self._stopping.is_set()

    def is_alive(self) -> bool:
        """Tell whether it runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Have it done soon; from any thread."""
        self._woken.set()

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(self._stop_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._work()
            except Exception:
                logger.exception("%s failed; it is tried again", self._name)
            self._woken.wait(self._every_s)
            self._woken.clear()
