"""What `gradwatch doctor` asks about the store: the library that it uses, and a data directory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Library:
    """The library that stores the data.

    Args:
        version: Which it is.
        oldest: The oldest that will do.
        will_do: Whether this one does.
        has_wal_reset_fault: Whether a second program that writes may damage the file.
    """

    version: str
    oldest: str
    will_do: bool
    has_wal_reset_fault: bool


@dataclass(frozen=True, slots=True)
class Inspection:
    """A data directory, or the place where one is to be made.

    Args:
        network_type: The network file system that it is on, None if it is on another one.
        holder: The process that has it, by what its lock says; None if none has.
        boot: Which start of an aggregator has it, as its `/healthz` says; None if none has, or one
            of an earlier version.
        last_holder: The process that had it last, None if that is not known.
        used_bytes: Size of the database with the files beside it.
        is_unclean: Whether the last that had it did not end by itself.
        schema: Version of the database; None without one, if the file is of another kind, or while
            it stands in the write-ahead log only.
        newest_schema: The newest version that can be read.
        is_ours: Whether the database is one that gradwatch wrote, as far as its head tells.
        written_ns: When it was last written, nanoseconds since the epoch; None without one.
    """

    network_type: str | None
    holder: str | None
    boot: str | None
    last_holder: str | None
    used_bytes: int
    is_unclean: bool
    schema: int | None
    newest_schema: int
    is_ours: bool
    written_ns: int | None
