"""Shard of a layer that a rank holds, as a manifest says it: `"Shard(0) 1/4"`, `""` for the whole.

A shard is named by its number, not by its rank: ranks that hold the same one (replicas under
HSDP) say the same, and the aggregator counts it once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gradwatch_wire.limits import MAX_RANKS

UNKNOWN_PLACEMENT: Final = "unknown"
"""Placement of a layer whose rank does not know how the layer lies on the ranks: no number of
shards makes it whole."""

_TEXT: Final = re.compile(r"(?:(.+) )?(0|[1-9]\d{0,4})/([1-9]\d{0,4})", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a layer that is divided over several ranks.

    Args:
        number: Which of them this is, from 0.
        placement: How the layer is divided, for people, such as `Shard(0)`.
    """

    number: int
    count: int
    placement: str = ""

    def __str__(self) -> str:
        return f"{self.placement} {self.number}/{self.count}".lstrip()


def parse_shard(text: str) -> Shard | None:
    """Read what a manifest says of one layer; None if the rank holds the whole of it.

    Raises:
        ValueError: If it is no shard.
    """
    if not text:
        return None
    match = _TEXT.fullmatch(text)
    shard = match and Shard(int(match[2]), int(match[3]), match[1] or "")
    if not shard or shard.number >= shard.count or shard.count > MAX_RANKS:
        msg = f"a shard is '' or like 'Shard(0) 1/4', got {text[:40]!a}"
        raise ValueError(msg)
    return shard
