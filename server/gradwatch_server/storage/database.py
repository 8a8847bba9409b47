"""Databases of a store: SQL that SQLite and PostgreSQL both understand, with `?` for a value.

`sqlite/` and `postgres/` each have one. Whatever they raise is a `StorageError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from gradwatch_server.storage.rows import Loss


class SQLReader(Protocol):
    """Connection that reads."""

    def row(self, sql: str, values: Any = ()) -> Any:
        """Return the first row that a statement finds, None if there is none."""

    def rows(self, sql: str, values: Any = ()) -> Iterator[Any]:
        """Yield the rows that a statement finds."""

    def part(self, table: str, column: str, place: int, offset: int, length: int) -> bytes:
        """Return bytes of a value from an offset on, of the row whose id is *place*."""


class Database(SQLReader, Protocol):
    """The connection that writes. One thread at a time may use it."""

    is_writing: bool
    """Whether a transaction is open."""

    loss: Loss | None
    """Rows that could not be read of a file that was set aside."""

    @property
    def name(self) -> str:
        """Name in errors: its path or its address."""

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, the least that a table or an index takes."""

    def execute(self, sql: str, values: Any = ()) -> int:
        """Run one statement; return the number of rows that it changed."""

    def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        """Run one statement for each row of values."""

    def transaction(self) -> AbstractContextManager[None]:
        """Commit what is written inside, all or none. One within another is part of that one."""

    def reading(self) -> AbstractContextManager[SQLReader]:
        """Open a connection that sees one moment, from any thread."""

    def used_bytes(self) -> int:
        """Return about how much space all of it takes, without what is free for new rows."""

    def vacuum(self, num_bytes: int) -> bool:
        """Give about so much free space back to the system; return whether there was any."""

    def check_present(self) -> None:
        """Raise a `StorageError` if what is written could not be found again."""

    def reset(self, reason: object) -> None:
        """Keep what is damaged under another name and go on with what can be read of it."""

    def close(self) -> None:
        """Let it go."""
