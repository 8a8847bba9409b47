"""The saved state of a partition: a table of runs, of their attempts, of chunks, and of the rest.

A save is one transaction, so that the rows always belong together. What is in them is encoded by
`storage.checkpoints`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from gradwatch_server.storage.postgres.connections import Connection, execute_all
from gradwatch_server.storage.postgres.database import Database, Fence
from gradwatch_server.storage.postgres.known_bytes import KnownBytes
from gradwatch_server.storage.store import RunSave, SavedRun

_TABLES_OF_A_RUN: Final = ("saved_runs", "saved_attempts", "saved_frames")

_PUT_PART: Final = """
    INSERT INTO saved_state (partition, part, body) VALUES (%s, %s, %s)
    ON CONFLICT (partition, part) DO UPDATE SET body = excluded.body
"""

# The row keeps its place, which says in which order the runs came.
_PUT_RUN: Final = """
    INSERT INTO saved_runs (partition, run, body) VALUES (%s, %s, %s)
    ON CONFLICT (partition, run) DO UPDATE SET body = excluded.body
"""

_PUT_ATTEMPT: Final = """
    INSERT INTO saved_attempts (partition, run, attempt, body) VALUES (%s, %s, %s, %s)
    ON CONFLICT (partition, run, attempt) DO UPDATE SET body = excluded.body
"""

_PUT_FRAMES: Final = """
    INSERT INTO saved_frames (partition, run, attempt, chunk, steps, body)
    VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT (partition, run, attempt, chunk)
    DO UPDATE SET steps = excluded.steps, body = excluded.body
"""

_BYTES_OF: Final = " + ".join(
    f"(SELECT coalesce(sum(octet_length(body)), 0) FROM {table} WHERE partition = %s)"
    for table in ("saved_state", *_TABLES_OF_A_RUN)
)
"""Told without reading what is large: its length is beside the reference to it."""


class PostgresSavedState:
    """The tables of the saved state, of one partition."""

    def __init__(self, db: Database, fence: Fence) -> None:
        self._db = db
        self._fence = fence
        self._bytes = KnownBytes(self._measure)

    @property
    def _partition(self) -> int:
        return self._fence.partition

    def save(self, parts: Mapping[str, bytes], runs: Sequence[RunSave]) -> None:
        """Replace parts of the saved state, all or none."""
        self._bytes.forget()
        with self._db.writing(self._fence) as connection:
            for run in runs:
                self._save_run(connection, run)
            rows = [(self._partition, name, body) for name, body in parts.items()]
            execute_all(connection, _PUT_PART, rows)

    def _save_run(self, connection: Connection, save: RunSave) -> None:
        if save.body is None:
            self._remove(connection, save.run, *_TABLES_OF_A_RUN)
            return
        if save.whole:
            self._remove(connection, save.run, "saved_attempts", "saved_frames")
        own = self._partition, save.run
        connection.execute(_PUT_RUN, (*own, save.body))
        attempts = [(*own, number, body) for number, body in save.attempts.items()]
        execute_all(connection, _PUT_ATTEMPT, attempts)
        chunks = [(*own, it.attempt, it.number, it.steps, it.columns) for it in save.chunks]
        execute_all(connection, _PUT_FRAMES, chunks)
        self._remove_below(connection, save.run, "saved_attempts", save.first_attempt)
        self._remove_below(connection, save.run, "saved_frames", save.first_chunk_attempt)

    def _remove(self, connection: Connection, run: str, *tables: str) -> None:
        for table in tables:
            delete = f"DELETE FROM {table} WHERE partition = %s AND run = %s"
            connection.execute(delete, (self._partition, run))

    def _remove_below(self, connection: Connection, run: str, table: str, attempt: int) -> None:
        if attempt > 1:
            delete = f"DELETE FROM {table} WHERE partition = %s AND run = %s AND attempt < %s"
            connection.execute(delete, (self._partition, run, attempt))

    def part(self, name: str) -> bytes | None:
        """Return a part that is of no run, None if there is none."""
        select = "SELECT body FROM saved_state WHERE partition = %s AND part = %s"
        row = self._db.row(select, self._partition, name)
        return None if row is None else row[0]

    def runs(self) -> list[str]:
        """Return the names of the saved runs in the order in which they were first saved."""
        select = "SELECT run FROM saved_runs WHERE partition = %s ORDER BY place"
        return [name for (name,) in self._db.rows(select, self._partition)]

    def run(self, name: str) -> SavedRun:
        """Return what is saved of a run."""
        own = self._partition, name
        of_run = "WHERE partition = %s AND run = %s"
        (body,) = self._db.row(f"SELECT body FROM saved_runs {of_run}", *own)
        attempts = self._db.rows(
            f"SELECT attempt, body FROM saved_attempts {of_run} ORDER BY attempt", *own
        )
        steps: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        for attempt, chunk, found in self._db.rows(
            f"SELECT attempt, chunk, steps FROM saved_frames {of_run} ORDER BY attempt, chunk",
            *own,
        ):
            steps[attempt].append((chunk, found))
        return SavedRun(body, dict(attempts), steps)

    def columns(self, run: str, attempt: int, chunk: int) -> bytes | None:
        """Return the columns of a chunk, None if there is none."""
        row = self._db.row(
            "SELECT body FROM saved_frames"
            " WHERE partition = %s AND run = %s AND attempt = %s AND chunk = %s",
            *(self._partition, run, attempt, chunk),
        )
        return None if row is None else row[0]

    def used_bytes(self) -> int:
        """Return how much room all of it takes, but for the steps of chunks."""
        return self._bytes.get()

    def _measure(self) -> int:
        (total,) = self._db.row(f"SELECT {_BYTES_OF}", *[self._partition] * 4)
        return int(total)
