"""Reads buckets of one range of steps, without gaps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gradwatch_server.api.curves import Curve
from gradwatch_server.api.rank_rows import RankRows
from gradwatch_server.api.series_range import Range
from gradwatch_server.api.subjects import SeriesTable
from gradwatch_server.core.arrays import IndexArray
from gradwatch_server.curves.buckets import Buckets
from gradwatch_server.curves.columns import LAYER_COLUMNS, RUN_COLUMNS, RUN_TABLE
from gradwatch_server.curves.facts import SeriesQuery
from gradwatch_server.curves.layers import KnownLayers


class BucketReader:
    """Reads what a range has.

    Args:
        rank: Has the rows of one rank, which are read in place of those of all.
    """

    def __init__(self, range_: Range, width: int, rank: RankRows | None = None) -> None:
        self._range, self.width, self._rank = range_, width, rank
        self._first, self._last = range_.numbered(width)
        self.num_buckets = max(self._last - self._first + 1, 0)

    @property
    def rank_facts(self) -> dict[str, Any]:
        """Rank of an answer, nothing without one."""
        return {} if self._rank is None else self._rank.describe()

    def whole(self) -> BucketReader:
        """Return the reader of all buckets of the range, also of those that the asker has."""
        return BucketReader(replace(self._range, after=None), self.width, self._rank)

    def read(self, table: str, items: IndexArray, *, with_all_steps: bool = False) -> Buckets:
        """Return the buckets of some items of a table, without steps that have no frame or with."""
        width = self.width
        if self._rank is not None:
            rows = Buckets.of(self._rank.rows(table, items), width)
            return rows.spread(self._first, self._last)
        epoch = self._range.span.epoch if self._range.span else 0
        steps = (self._first * width, (self._last + 1) * width - 1)
        history = self._range.history.of_table(table)
        read = history.run_buckets if with_all_steps else history.buckets
        buckets = read(SeriesQuery(epoch, table, items, *steps), width)
        return buckets.spread(self._first, self._last)

    def of_run(self, columns: list[str]) -> list[Curve]:
        if not columns:
            return []
        items = [RUN_COLUMNS.index(name) for name in columns]
        buckets = self.read(RUN_TABLE, np.array(items, dtype=np.int64), with_all_steps=True)
        return [Curve({"column": name}, buckets, at) for at, name in enumerate(columns)]

    def curves(self, wanted: SeriesTable, known: KnownLayers) -> list[Curve]:
        places = np.array(wanted.places, dtype=np.int64)
        layer = LAYER_COLUMNS[wanted.column] if wanted.subjects[0].kind is None else None
        buckets = self.read(wanted.table if layer is None else layer.stored, places)
        if layer is not None and layer.power:
            buckets = buckets.scaled(layer.factor(known.sizes[places]))
        return [
            Curve({subject.parameter: subject.name, "column": wanted.column}, buckets, at)
            for at, subject in enumerate(wanted.subjects)
        ]
