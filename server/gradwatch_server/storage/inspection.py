"""The data directory as `gradwatch doctor` sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreInspection:
    """A data directory, or the place where one is to be made.

    Args:
        network_type: The network file system that it is on, None if it is on another one.
        holder: The process that has it, by what its lock says; None if none has.
        boot: Which start of an aggregator has it, as its `/healthz` says; None if none has.
        schema: Version of the database; None without one, if the file is of another kind, or while
            it stands in the write-ahead log only.
        is_ours: Whether the database is one that gradwatch wrote, as far as its head tells.
        written_ns: When it was last written, nanoseconds since the epoch; None without one.
    """

    network_type: str | None
    holder: str | None
    boot: str | None
    used_bytes: int
    schema: int | None
    newest_schema: int
    is_ours: bool
    written_ns: int | None
