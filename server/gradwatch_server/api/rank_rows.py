"""Numbers that one rank sent of a range of steps, as long as its records are in the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import numpy as np
from fastapi import Depends, HTTPException, Query

from gradwatch_server.api.questions import Layouts, show_layouts
from gradwatch_server.api.rank_stretch import Stretch, anchor_of
from gradwatch_server.api.series_range import Range
from gradwatch_server.api.state import Api, View
from gradwatch_server.core.arrays import BoolArray, IndexArray, numbers
from gradwatch_server.core.frames.merging import total_norm
from gradwatch_server.core.frames.rows import FRAME_COLUMNS
from gradwatch_server.core.views.snapshot import RankView, RunView
from gradwatch_server.curves.block import Block
from gradwatch_server.curves.columns import RUN_COLUMNS, RUN_TABLE
from gradwatch_server.curves.facts import SeriesQuery
from gradwatch_server.curves.rows import Rows
from gradwatch_server.storage.log import Records
from gradwatch_server.storage.rows import KeptRecord
from gradwatch_wire.columns import L2, L2_MAX
from gradwatch_wire.names import Scalar

MOST_STEPS: Final = 1_024
"""Steps of which records are read, the newest of the range: each is read whole."""

MOST_ENTRIES: Final = 16_384
"""Entries of the log that the search for a rank's rows reads at most."""

SHOWN_RANKS: Final = 8

RANK_COLUMNS: Final[Mapping[str, str | None]] = {
    "norm": None,
    "loss": Scalar.LOSS,
    "lr": Scalar.LR,
    "loss_scale": Scalar.LOSS_SCALE,
    "step_time": Scalar.STEP_TIME_S,
}
"""Columns of the run that each rank has of its own, and the scalar that each is."""

_SKIPPED: Final = RUN_COLUMNS.index("skipped")

Rank = Annotated[int | None, Query(ge=0, lt=1 << 31, description="Numbers of this rank alone.")]


def rank_of(view: RunView, rank: int) -> RankView:
    """Return a rank of an attempt."""
    rank_view = next((each for each in view.ranks if each.rank == rank), None)
    if rank_view is not None:
        return rank_view
    shown = ", ".join(str(each.rank) for each in view.ranks[:SHOWN_RANKS]) or "none yet"
    more = len(view.ranks) - SHOWN_RANKS
    known = shown + (f" and {more} more" if more > 0 else "")
    detail = f"no rank {rank} in attempt {view.attempt} of run {view.name!a}; there are {known}"
    raise HTTPException(404, detail)


@dataclass(frozen=True, slots=True)
class SelectedRank:
    """A rank whose own numbers are asked for."""

    view: RankView
    layouts: Layouts


async def _selected_rank(view: View, api: Api, rank: Rank = None) -> SelectedRank | None:
    if rank is None:
        return None
    selected = rank_of(view, rank)
    return SelectedRank(selected, await api.command(show_layouts(view.name, view.attempt)) or {})


Selected = Annotated[SelectedRank | None, Depends(_selected_rank)]
"""The type of the parameter by which a route gets the rank that is asked for."""


class RankRows:
    """The rows of one rank in a range."""

    def __init__(
        self, rank: SelectedRank, range_: Range, num_layers: int, columns: Sequence[str]
    ) -> None:
        self._rank, self._range = rank, range_
        wanted = dict.fromkeys((L2, *(name for name in columns if name in FRAME_COLUMNS)))
        self._shape = tuple(wanted), num_layers
        self._block = Block(0, 0, 0, *self._shape)
        self._has_layouts = True

    def read(self, records: Records) -> None:
        run = self._frames()
        steps: dict[int, list[KeptRecord]] = {}
        for record in self._records(records, run):
            steps.setdefault(record.stats.step, []).append(record)
        rising = sorted(steps)
        self._block = Block(0, 0, len(rising), *self._shape)
        skipped = set(run.steps[run.skipped].tolist())
        for row, step in enumerate(rising):
            self._fill(row, steps[step], is_skipped=step in skipped)
        self._block.count = len(rising)

    def rows(self, table: str, items: IndexArray) -> Rows:
        return self._block.rows(table, items)

    def describe(self) -> dict[str, Any]:
        """Return from which step on there is something, and why not before."""
        steps = self._block.steps[: self._block.count]
        reason = None
        if not self._has_layouts:
            reason = "which layers its records are about is not known any more; the attempt is over"
        elif not len(steps) or steps[0] > self._range.first:
            reason = (
                f"own numbers of a rank are read from the log, which has them of at most "
                f"{MOST_STEPS} steps and while it keeps their records (log_max_age_s)"
            )
        return {
            "rank": self._rank.view.rank,
            "rank_from": int(steps[0]) if len(steps) else None,
            "rank_reason": reason,
        }

    def _frames(self) -> Rows:
        """Return the steps of the range that closed, and which of them were skipped."""
        range_ = self._range
        epoch = range_.span.epoch if range_.span else 0
        items = np.array([_SKIPPED], dtype=np.int64)
        buckets = range_.history.buckets(
            SeriesQuery(epoch, RUN_TABLE, items, range_.first, range_.last), 1
        )
        values: BoolArray = buckets.stats[1, :, 0] > 0.0
        return Rows(
            buckets.numbers, buckets.times_ns, values, buckets.stats[1], buckets.counts[0] > 0
        )

    def _records(self, records: Records, run: Rows) -> list[KeptRecord]:
        """Return the records of these steps, but none of another epoch."""
        session, range_ = self._rank.view.session, self._range
        if session is None or range_.span is None or not len(run.steps):
            return []
        offset = range_.history.offset(range_.span.epoch, int(run.steps[-1]))
        if offset is None:
            return []
        anchor = anchor_of(range_, int(run.steps[0]), int(run.steps[-1]))
        stretch = Stretch(anchor, range_.first, range_.last)
        for record in records.before(range_.view.name, offset, MOST_ENTRIES, session):
            is_before = record.stats.step < range_.first and stretch.has_anchor
            if stretch.is_whole or is_before:
                break
            stretch.add_older(record)
        stretch.end()
        return stretch.records

    def _fill(self, row: int, records: Sequence[KeptRecord], *, is_skipped: bool) -> None:
        block = self._block
        block.steps[row] = records[0].stats.step
        block.times_ns[row] = max(record.received_ns for record in records)
        block.skipped[row] = is_skipped
        norms = [norm for record in records for norm in self._fill_layers(row, record)]
        told: dict[str, float] = {"coverage": 1.0, "skipped": float(is_skipped)}
        if norms:
            told["norm"] = total_norm(np.concatenate(norms))
        for name, scalar in RANK_COLUMNS.items():
            given = [record.stats.scalars.get(scalar) for record in records] if scalar else []
            known = [value for value in given if value is not None]
            if known:
                told[name] = known[0]
        for name, value in told.items():
            place = RUN_COLUMNS.index(name)
            block.run[row, place], block.run_known[row, place] = value, True

    def _fill_layers(self, row: int, record: KeptRecord) -> Iterator[Any]:
        """Fill in what a record has of layers; yield its L2 norms."""
        columns = record.stats.columns
        wanted = (*self._block.columns, L2_MAX)
        values = {name: numbers(columns[name]) for name in wanted if name in columns}
        if L2 not in values:
            return
        peak = values.get(L2_MAX, values[L2])
        l2 = values[L2] = np.where(np.isfinite(peak), values[L2], peak)
        yield l2
        index = self._rank.layouts.get((record.session, record.stats.manifest_id))
        if index is None or len(index) != len(l2):
            self._has_layouts = False
            return
        self._block.present[row, index] = True
        for place, name in enumerate(self._block.columns):
            if name in values:
                self._block.values[row, place, index] = values[name]


def check_columns(columns: Sequence[str], others: Mapping[str, Sequence[str]]) -> None:
    """Check that a rank has what is asked for of its own."""
    wrong = [name for name in columns if name in RUN_COLUMNS and name not in RANK_COLUMNS]
    wrong += [name for name, given in others.items() if given and name != "layer"]
    if wrong:
        known = ", ".join(RANK_COLUMNS)
        detail = f"query rank: {wrong[0]} is not kept of each rank; of the run there are {known},"
        raise HTTPException(422, f"{detail} and the columns of layers")


def read_rank(
    rank: SelectedRank, range_: Range, num_layers: int, columns: Sequence[str], records: Records
) -> tuple[Range, RankRows]:
    """Read what a rank sent in a range; return that without the steps that are not looked at."""
    shorter = replace(range_, first=max(range_.first, range_.last - MOST_STEPS + 1))
    rank_rows = RankRows(rank, shorter, num_layers, columns)
    rank_rows.read(records)
    return shorter, rank_rows
