"""What goes out as one message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from gradwatch_server.storage.deliveries import Entry

MAX_MESSAGES: Final = 10
"""Groups that are told in messages of their own at one moment; more of them go in one together."""

FOLDED: Final = "\x1e"
"""Stands for the groups of a message of several, of which none is called so."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What goes out as one message.

    Args:
        groups: Its groups, mostly one.
        entries: The alerts, oldest event first.
        is_repeat: Whether they were told before and fire on.
        is_again: Whether it may have arrived already: an answer did not come, or was not noted.
    """

    groups: tuple[str, ...]
    entries: tuple[Entry, ...]
    is_repeat: bool = False
    is_again: bool = False

    @property
    def key(self) -> str:
        """What the delivery log calls it while it is sent."""
        return self.groups[0] if len(self.groups) == 1 else FOLDED


def first_batch(
    found: Mapping[str, tuple[Entry, ...]], doubtful: str | None, *, is_repeat: bool
) -> Batch:
    """Return the first message of those that are due; all in one where they are many."""
    groups = tuple(found)
    if len(groups) <= MAX_MESSAGES:
        groups = tuple(own for own in groups if own == doubtful) or groups[:1]
    entries = sorted((own for group in groups for own in found[group]), key=lambda e: e.cursor)
    batch = Batch(groups, tuple(entries), is_repeat)
    return replace(batch, is_again=doubtful in (batch.key, FOLDED))
