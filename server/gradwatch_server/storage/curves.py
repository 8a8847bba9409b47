"""Store of curves: blocks of rows and buckets by attempt. `curves.facts` describes what is read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from gradwatch_server.curves.facts import SavedBlock, StoredCurves


class CurveSize(NamedTuple):
    """Bytes of the curves of one attempt."""

    run: str
    attempt: int
    num_bytes: int


class CurveStore(Protocol):
    """Curves in a store. `read` is for any thread, all else for the one that writes."""

    def read(self, run: str, attempt: int) -> AbstractContextManager[StoredCurves]:
        """Open what is stored of an attempt, as it is at one moment."""

    def stored(self, run: str, attempt: int) -> StoredCurves:
        """Return what is stored of an attempt, as it is at each call."""

    def save(
        self,
        run: str,
        attempt: int,
        blocks: Sequence[SavedBlock],
        layers: bytes | None = None,
    ) -> None:
        """Write blocks, each in place of what it was, all or none; and the layers, if given."""

    def sizes(self, run: str | None = None) -> list[CurveSize]:
        """Return the sizes of all attempts, or of those of one run."""

    def used_bytes(self) -> int:
        """Return how much room all of it takes."""

    def trim(self, run: str, attempt: int, level: int, most: int) -> int:
        """Delete the *most* oldest blocks of a level that the next one stands for; return bytes."""

    def drop(self, run: str, attempt: int, level: int, most: int) -> int:
        """Delete the *most* oldest blocks of a level, but not the newest one; return the bytes."""

    def remove(self, run: str, attempt: int, most: int) -> bool:
        """Delete up to *most* blocks of an attempt, and itself with the last; return if any."""
