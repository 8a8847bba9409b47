"""Code that waits in its midst while others go on, one of them at a time, in a given order.

An engine that waits for its log does so deep inside; so each runs in a thread of its own, and only
the one that was given its turn runs. What happens is the same with every run of a seed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar


class Killed(BaseException):
    """Raised in a task that is killed, in the middle of whatever it does."""


class Task:
    """Work that is done in turns."""

    current: ClassVar[Task]
    """The one whose turn it is."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.is_over = False
        self._work = work
        self._failure: BaseException | None = None
        self._is_killed = False
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def resume(self) -> None:
        """Give it its turn, until it waits or is over.

        Raises:
            BaseException: What it failed with.
        """
        if self.is_over:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        Task.current = self
        self._turn.release()
        self._back.acquire()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def wait(self) -> None:
        """Let others have their turn; for the task itself.

        Raises:
            Killed: If it was killed meanwhile.
        """
        self._back.release()
        self._turn.acquire()
        if self._is_killed:
            raise Killed

    @classmethod
    def sleep(cls, _seconds: float) -> None:
        """Let others have their turn, in the task whose turn it is."""
        cls.current.wait()

    def kill(self) -> None:
        """End it where it waits."""
        self._is_killed = True
        if self._thread is None:
            self.is_over = True
        while not self.is_over:
            self.resume()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self._is_killed:
                self._work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - raised where it was given its turn
            self._failure = error
        self.is_over = True
        self._back.release()
