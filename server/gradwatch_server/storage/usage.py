"""Who takes how much room: bytes of the log and of the alert events, by run.

Counted as rows come in, and kept in the store, so that no start has to add up all of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

OTHERS: Final = ""
"""What is of no run in memory: entries of the aggregator's own, and of runs that it forgot."""


@dataclass(slots=True)
class Usage:
    """Bytes by run of everything up to a place.

    Args:
        counted: The place, an offset or a cursor.
        by_run: Run to bytes.
    """

    counted: int = 0
    by_run: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Bytes of all runs."""
        return sum(self.by_run.values())

    def add(self, run: str, num_bytes: int) -> None:
        """Count what came in, or went."""
        left = self.by_run.get(run, 0) + num_bytes
        if left > 0:
            self.by_run[run] = left
        else:
            self.by_run.pop(run, None)

    def fold(self, runs: Collection[str]) -> None:
        """Count what is of none of these runs under `OTHERS`."""
        for name in self.by_run.keys() - runs - {OTHERS}:
            self.add(OTHERS, self.by_run.pop(name))

    def excess(self, too_much: int) -> dict[str, int]:
        """Return by how much each run is above the level that would free so many bytes.

        All are cut to one level, and who is below it keeps everything: a quiet run pays nothing
        for a noisy one.
        """
        left = too_much
        sizes = sorted(self.by_run.items(), key=lambda item: item[1], reverse=True)
        level = 0
        for number, (_, size) in enumerate(sizes, 1):
            below = sizes[number][1] if number < len(sizes) else 0
            if left <= number * (size - below):
                level = max(size - -(-left // number), 0)
                break
            left -= number * (size - below)
        return {run: size - level for run, size in sizes if size > level}


def encode_usage(usages: Mapping[str, Usage]) -> bytes:
    """Return what is kept of several, by name."""
    body: bytes = msgpack.packb({name: [own.counted, own.by_run] for name, own in usages.items()})
    return zlib.crc32(body).to_bytes(4, "little") + body


def decode_usage(body: bytes | None, name: str) -> Usage:
    """Return one of those that were encoded; one that begins anew if that is not there or good."""
    try:
        if body is None or zlib.crc32(body[4:]) != int.from_bytes(body[:4], "little"):
            return Usage()
        plain: dict[str, Any] = msgpack.unpackb(body[4:])
        counted, by_run = plain[name]
        return Usage(int(counted), dict(by_run))
    except (ValueError, KeyError, TypeError):
        return Usage()
