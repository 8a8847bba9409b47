"""What part of a layer a rank holds, as a manifest says it: `"Shard(0) 1/4"`, `""` for the whole.

A shard is named by its piece, not by its rank: ranks that hold the same piece (replicas under
HSDP) say the same, and the aggregator counts it once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gradwatch_wire.limits import MAX_RANKS

_TEXT: Final = re.compile(r"(?:(.+) )?(0|[1-9]\d{0,4})/([1-9]\d{0,4})", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shard:
    """One piece of a layer that is cut over several ranks.

    Args:
        piece: Which piece this is, from 0.
        pieces: How many there are.
        placement: How it is cut, for people, such as `Shard(0)`.
    """

    piece: int
    pieces: int
    placement: str = ""

    def __str__(self) -> str:
        """Return what a manifest carries."""
        return f"{self.placement} {self.piece}/{self.pieces}".lstrip()


def parse_shard(text: str) -> Shard | None:
    """Read what a manifest says of one layer; None if the rank holds the whole of it.

    Raises:
        ValueError: If it is no shard.
    """
    if not text:
        return None
    match = _TEXT.fullmatch(text)
    shard = match and Shard(int(match[2]), int(match[3]), match[1] or "")
    if not shard or shard.piece >= shard.pieces or shard.pieces > MAX_RANKS:
        msg = f"a shard is '' or like 'Shard(0) 1/4', got {text[:40]!a}"
        raise ValueError(msg)
    return shard
