"""What the headers of a message say of it, so that most messages need not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_KIND: Final = "Gradwatch-Kind"
_FIRST: Final = "Gradwatch-First"
_COUNT: Final = "Gradwatch-Count"
_PART: Final = "Gradwatch-Part"
_HEADS: Final = "Gradwatch-Heads"
_FROM: Final = "Gradwatch-From"


class MessageKind(StrEnum):
    """What is in a message."""

    ENTRIES = "entries"
    DELETED = "deleted"  # the places of all entries that are deleted, though messages have them
    OWNER = "owner"  # nothing: a new owner began


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is known of a message without its payload.

    Args:
        kind: What is in it.
        first: Place of its first entry in the log; without entries, of the next one, or 0.
        count: Its entries.
        part: Which part of the batch it is, from 1.
        parts: How many there are.
        has_heads: Whether there is an entry in it that others cannot be read without.
        kept_from: Sequence of the first message that still counts, 0 for the message itself;
            None where nothing changed.
    """

    kind: MessageKind
    first: int
    count: int = 0
    part: int = 1
    parts: int = 1
    has_heads: bool = False
    kept_from: int | None = None

    def headers(self) -> dict[str, str]:
        """Return it as headers."""
        headers = {
            _KIND: str(self.kind),
            _FIRST: str(self.first),
            _COUNT: str(self.count),
            _PART: f"{self.part}/{self.parts}",
            _HEADS: str(int(self.has_heads)),
        }
        return headers if self.kept_from is None else {**headers, _FROM: str(self.kept_from)}

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Label:
        """Read it from headers.

        Raises:
            ValueError: If they are not of a message of a log.
        """
        try:
            part, _, parts = headers[_PART].partition("/")
            return cls(
                kind=MessageKind(headers[_KIND]),
                first=int(headers[_FIRST]),
                count=int(headers[_COUNT]),
                part=int(part),
                parts=int(parts),
                has_heads=headers[_HEADS] == "1",
                kept_from=int(headers[_FROM]) if _FROM in headers else None,
            )
        except KeyError as error:
            msg = f"a message without the header {error.args[0]}"
            raise ValueError(msg) from error
