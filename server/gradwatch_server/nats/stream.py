"""What is asked of a replicated stream, whoever keeps it: NATS JetStream, or the simulation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from gradwatch_server.nats.errors import NATSError

MAX_MESSAGE_BYTES: Final = 512 * 1024
"""The most that should be put into one message; a server takes 1 MiB unless it is set otherwise."""


class LastSequenceError(NATSError):
    """Another message than the one expected is the last of the subject: somebody else wrote."""


class MissingError(NATSError):
    """A message between two that are there is missing: lost, or purged in this moment."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A message of a stream.

    Args:
        sequence: Its place in the stream: those of a subject rise, and have gaps.
        headers: Its headers.
        payload: Its bytes; none if only headers were read.
        num_bytes: How many bytes that are, whether or not they were read.
        epoch: Of the owner of the subject that wrote it.
    """

    sequence: int
    headers: Mapping[str, str] = field(default_factory=dict)
    payload: bytes = b""
    num_bytes: int = 0
    epoch: int = 0


class Stream(Protocol):
    """Messages on subjects, each subject a chain with one owner. All methods are for any thread.

    All of them raise `UnreachableError` if there is no answer: an append may have been done then.
    """

    def append(
        self,
        subject: str,
        payload: bytes,
        *,
        message_id: str,
        after: int,
        epoch: int,
        headers: Mapping[str, str],
    ) -> int:
        """Append a message and return its sequence once most servers have it.

        Args:
            subject: Where it goes.
            payload: Its bytes.
            message_id: The same call with the same id is written once, however often it is made.
            after: Sequence of the last message of the subject, 0 if there is none.
            epoch: Of the owner that writes it; 0 of a subject that anybody writes to.
            headers: Its headers.

        Raises:
            LastSequenceError: If another message came after that one; nobody reads this one.
            FullError: If there is no room.
        """

    def take_over(self, subject: str, epoch: int, headers: Mapping[str, str]) -> int:
        """Append a message of a new owner, whichever is the last one; return its sequence.

        From it on no owner of a lower epoch appends. It does not count if there is one of a higher
        epoch: who reads the subject then sees.

        Raises:
            FullError: If there is no room.
        """

    def read(self, subject: str, after: int = 0, *, headers_only: bool = False) -> Iterator[Stored]:
        """Yield the messages of a subject after one of them, as many as there are as this begins.

        Args:
            subject: The subject.
            after: Sequence of a message of it, 0 to begin with the oldest one.
            headers_only: Whether payloads are left out.

        Raises:
            MissingError: If that one or one between two others is missing.
        """

    def get(self, sequence: int) -> Stored | None:
        """Return a message, None if it was purged."""

    def purge(self, subject: str, before: int) -> None:
        """Delete the messages of a subject before one of them, which stays."""

    def used_bytes(self) -> int:
        """Return how many bytes all messages take, on one server."""
