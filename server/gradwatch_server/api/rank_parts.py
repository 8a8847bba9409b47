"""Numbers that each rank sent of one step, as long as its records are in the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from gradwatch_server.api.questions import Layouts
from gradwatch_server.api.rank_stretch import ClosedStep, Stretch
from gradwatch_server.core.alerting.alert import isotime
from gradwatch_server.core.arrays import numbers
from gradwatch_server.core.frames.merging import total_norm
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.storage.log import Records
from gradwatch_server.storage.rows import KeptRecord
from gradwatch_wire import Stats
from gradwatch_wire.columns import INFS, L2, LINF, LOCAL_L2, NANS
from gradwatch_wire.names import Label, Scalar

LOOK_BACK: Final = 8_192
"""Entries before the close of a step that the search for its records reads."""

LOOK_AHEAD: Final = 1_024
"""Entries after it among which late ones are."""

SHOWN: Final = (L2, LINF, NANS, INFS, LOCAL_L2)
_SCALARS: Final = (Scalar.LOSS, Scalar.LR, Scalar.LOSS_SCALE, Scalar.STEP_TIME_S, Scalar.BATCH_SIZE)


@dataclass(slots=True)
class RankParts:
    """The records of one step by rank."""

    layouts: Layouts
    _records: dict[int, dict[int, KeptRecord]] = field(default_factory=dict)
    _late: set[int] = field(default_factory=set)

    @classmethod
    def find(
        cls, view: RunView, layouts: Layouts, records: Records, closed: ClosedStep
    ) -> RankParts:
        parts = cls(layouts)
        ranks = {rank.session: rank.rank for rank in view.ranks if rank.session is not None}
        stretches = {session: Stretch(closed.anchor, closed.step, closed.step) for session in ranks}
        for record in records.before(view.name, closed.number, LOOK_BACK):
            stretch = stretches.get(record.session)
            if stretch is not None and not stretch.is_whole:
                stretch.add_older(record)
                if stretch.has_anchor and all(map(_is_found, stretches.values())):
                    break
        for stretch in stretches.values():
            stretch.end()
        parts._add_late(stretches, ranks, records.after(view.name, closed.number, LOOK_AHEAD))
        for session, stretch in stretches.items():
            if stretch.records:
                parts._records[ranks[session]] = {one.stats.part: one for one in stretch.records}
        return parts

    def _add_late(
        self,
        stretches: Mapping[bytes, Stretch],
        ranks: Mapping[bytes, int],
        records: Iterable[KeptRecord],
    ) -> None:
        """Add what came after the step had closed."""
        if all(_has_all_parts(stretch.records) for stretch in stretches.values()):
            return
        for record in records:
            stretch = stretches.get(record.session)
            if stretch is not None and stretch.add_newer(record):
                self._late.add(ranks[record.session])

    def describe(self) -> list[dict[str, Any]]:
        """Return what each rank sent, in their order."""
        return [self._describe(rank, self._records[rank]) for rank in sorted(self._records)]

    def _describe(self, rank: int, parts: Mapping[int, KeptRecord]) -> dict[str, Any]:
        records = [parts[part] for part in sorted(parts)]
        last = max(records, key=lambda record: record.received_ns)
        stats = [record.stats for record in records]
        norms = [numbers(one.columns[L2]) for one in stats if L2 in one.columns]
        return {
            "rank": rank,
            "received_at": isotime(last.received_ns),
            "late": rank in self._late,
            "norm": total_norm(np.concatenate(norms)) if norms else None,
            **{str(name): _first(stats, name) for name in _SCALARS},
            "point": stats[0].labels.get(Label.POINT),
            "taken": stats[0].labels.get(Label.TAKEN),
        }

    def of_layers(self, places: Sequence[int]) -> list[list[dict[str, Any]] | None]:
        """Return for each layer what each rank has of it; None if it is not known which is it."""
        if not all(
            (record.session, record.stats.manifest_id) in self.layouts
            for parts in self._records.values()
            for record in parts.values()
        ):
            return [None] * len(places)
        return [list(self._of_layer(place)) for place in places]

    def _of_layer(self, place: int) -> Iterator[dict[str, Any]]:
        for rank in sorted(self._records):
            for record in self._records[rank].values():
                index = self.layouts[record.session, record.stats.manifest_id]
                for at in np.flatnonzero(index == place).tolist():
                    yield {"rank": rank} | _numbers(record.stats, at)


def _is_found(stretch: Stretch) -> bool:
    return stretch.is_whole or (stretch.has_anchor and _has_all_parts(stretch.records))


def _has_all_parts(records: Sequence[KeptRecord]) -> bool:
    return bool(records) and len(records) >= records[0].stats.parts


def _numbers(stats: Stats, at: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in SHOWN:
        column = stats.columns.get(name)
        known = column is not None and at < column.size
        value = float(numbers(column)[at]) if known and column is not None else None
        values[name] = None if name == LOCAL_L2 and value is not None and value < 0.0 else value
    return values


def _first(stats: Sequence[Stats], name: Scalar) -> float | None:
    return next((one.scalars[name] for one in stats if name in one.scalars), None)
