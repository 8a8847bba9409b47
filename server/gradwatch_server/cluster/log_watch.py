"""Sees whether the stream of the log is there, and still as it was made."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from gradwatch_server.cluster.repeating import Repeating
from gradwatch_server.errors import GradwatchError
from gradwatch_server.nats.errors import UnreachableError

logger = logging.getLogger(__name__)

LOOK_S: Final = 2.0
"""How often it is looked: a write finds out at once that it cannot be done."""

STOP_S: Final = 1.0
"""How long the end waits for a look."""


class LogWatch:
    """Looks at the stream in a thread of its own.

    Args:
        check: Raises a `GradwatchError` if it is not there, or not what it is to be.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self.fault: str | None = None
        """What is wrong with it, None if nothing."""
        self._check = check
        self._looks = Repeating("log-watch", self.look, LOOK_S, STOP_S)
        self.start, self.stop = self._looks.start, self._looks.stop

    def look(self) -> None:
        """Look once."""
        try:
            self._check()
        except UnreachableError as error:  # the connection tells of it, and who writes
            self.fault = str(error)
        except GradwatchError as error:
            if self.fault is None:
                logger.error("the log: %s", error)
            self.fault = str(error)
        else:
            self.fault = None
