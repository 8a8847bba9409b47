"""Base of notifiers: each sends one message, or says why that is not possible."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final, Self

from gradwatch_server.notify.notification import Notification
from gradwatch_server.notify.policy import Policy

TIMEOUT_S: Final = 10.0
"""Seconds that a receiver may take to connect, and to answer."""

MAX_REASON: Final = 200
"""Characters of the reason that a receiver gives."""

_AGAIN: Final = frozenset({408, 421, 423, 425, 429})
"""Answers of 4xx after which the same message may be taken later."""


class DeliveryError(Exception):
    """A message was not taken, or it is not known whether it was.

    Args:
        reason: Why; without any secret.
        is_refused: Whether it certainly was not taken.
        is_final: Whether the same message would be refused again.
    """

    def __init__(self, reason: str, *, is_refused: bool = False, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_refused = is_refused or is_final
        self.is_final = is_final

    @classmethod
    def answered(cls, reason: str, status: int) -> Self:
        """Return that of an HTTP answer which is none of success."""
        is_final = 400 <= status < 500 and status not in _AGAIN
        return cls(reason, is_refused=True, is_final=is_final)


class Notifier(ABC):
    """One kind of target.

    `name` is its `type` in the settings. `unused` are settings that it has no use for, as the
    receiver does that by itself; `schedule` then says how it is told.
    """

    name: ClassVar[str]
    unused: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def __init__(self, url: str) -> None:
        """Prepare to send to a target.

        Raises:
            GradwatchError: If the URL is none that it knows, or a library is missing. The text
                has nothing of the URL.
        """

    @classmethod
    def schedule(cls, policy: Policy) -> Policy:
        """Return when the target is told, given what its settings say."""
        return policy

    @abstractmethod
    def send(self, notice: Notification) -> None:
        """Send a message, and return once the receiver has taken it.

        Raises:
            DeliveryError: If it has not, or that is not known.
        """

    @abstractmethod
    def test(self, page_url: str | None) -> None:
        """Send a message that says it is a test.

        Raises:
            DeliveryError: If it was not taken.
        """
