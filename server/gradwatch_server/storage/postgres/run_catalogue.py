"""The table of runs: owners publish a summary of each, any node reads it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gradwatch_server.storage.ledger import MAX_RUNS, PAGE_RUNS, RunSummary
from gradwatch_server.storage.postgres.connections import execute_all
from gradwatch_server.storage.postgres.database import Database, Fence

_COLUMNS: Final = "run, partition, summary, updated_ns"

_PUBLISH: Final = f"""
    INSERT INTO runs ({_COLUMNS}) VALUES (%s, %s, %s, %s)
    ON CONFLICT (run) DO UPDATE SET partition = excluded.partition, summary = excluded.summary,
    updated_ns = excluded.updated_ns
"""


class PostgresRunCatalogue:
    """The runs of all partitions."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def get(self, run: str) -> RunSummary | None:
        """Return what was published last of a run, None if nothing is."""
        row = self._db.row(f"SELECT {_COLUMNS} FROM runs WHERE run = %s", run)
        return None if row is None else RunSummary(*row)

    def after(self, run: str = "", most: int = PAGE_RUNS) -> list[RunSummary]:
        """Return up to *most* runs with names after one, by code points."""
        select = f"SELECT {_COLUMNS} FROM runs WHERE run > %s ORDER BY run LIMIT %s"
        return [RunSummary(*row) for row in self._db.rows(select, run, most)]

    def of_partitions(self, partitions: Sequence[int]) -> list[RunSummary]:
        """Return the runs of some partitions, those first that were published last."""
        select = (
            f"SELECT {_COLUMNS} FROM runs WHERE partition = ANY(%s)"
            " ORDER BY updated_ns DESC LIMIT %s"
        )
        rows = self._db.rows(select, list(partitions), MAX_RUNS)
        return [RunSummary(*row) for row in rows]


class PostgresPartitionRuns:
    """The runs of one partition, for its owner."""

    def __init__(self, db: Database, fence: Fence) -> None:
        self._db = db
        self._fence = fence

    def publish(self, summaries: Mapping[str, str], updated_ns: int) -> None:
        """Put run to summary in place of what was published of these runs, all or none."""
        own = self._fence.partition
        rows = [(run, own, summary, updated_ns) for run, summary in summaries.items()]
        with self._db.writing(self._fence) as connection:
            execute_all(connection, _PUBLISH, rows)

    def names(self) -> list[str]:
        """Return the names of the runs of the partition that are there."""
        select = "SELECT run FROM runs WHERE partition = %s"
        return [run for (run,) in self._db.rows(select, self._fence.partition)]

    def withdraw(self, runs: Collection[str]) -> None:
        """Remove runs from the catalogue; those that are not there are passed over."""
        with self._db.writing(self._fence) as connection:
            delete = "DELETE FROM runs WHERE partition = %s AND run = ANY(%s)"
            connection.execute(delete, (self._fence.partition, list(runs)))
