"""What each rank sent of one step, as long as its records are in the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from gradwatch_server.api.questions import Layouts
from gradwatch_server.core.alerting.alert import isotime
from gradwatch_server.core.frames.layers import numbers
from gradwatch_server.core.frames.merging import total_norm
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.storage.series_store import KeptRecord, Records
from gradwatch_wire import Stats
from gradwatch_wire.columns import INFS, L2, LINF, LOCAL_L2, NANS
from gradwatch_wire.names import Label, Scalar

LOOK_BACK: Final = 8_192
"""Entries before a step closed among which its records are looked for."""

LOOK_AHEAD: Final = 1_024
"""Entries after it among which late ones are."""

SHOWN: Final = (L2, LINF, NANS, INFS, LOCAL_L2)
_SCALARS: Final = (Scalar.LOSS, Scalar.LR, Scalar.LOSS_SCALE, Scalar.STEP_TIME_S, Scalar.BATCH_SIZE)


@dataclass(slots=True)
class RankParts:
    """The records of one step by rank.

    Args:
        layouts: Which layers they are about.
    """

    layouts: Layouts
    _records: dict[int, dict[int, KeptRecord]] = field(default_factory=dict)
    _late: set[int] = field(default_factory=set)

    @classmethod
    def find(
        cls, view: RunView, layouts: Layouts, records: Records, step: int, offset: int
    ) -> RankParts:
        """Look for the records of a step.

        Args:
            view: The attempt.
            layouts: Which layers they are about.
            records: The log.
            step: The step.
            offset: Where in the log it closed.
        """
        ranks = {own.session: own.rank for own in view.ranks if own.session is not None}
        found = cls(layouts)
        for own in records.before(offset, LOOK_BACK):
            if found._take(own, ranks, step) and found._has_all(ranks.values()):
                break
        if not found._has_all(ranks.values()):
            for own in records.after(offset, LOOK_AHEAD):
                if found._take(own, ranks, step):
                    found._late.add(ranks[own.session])
        return found

    def _take(self, own: KeptRecord, ranks: Mapping[bytes, int], step: int) -> bool:
        if own.stats.step != step or own.session not in ranks:
            return False
        parts = self._records.setdefault(ranks[own.session], {})
        return parts.setdefault(own.stats.part, own) is own

    def _has_all(self, ranks: Iterable[int]) -> bool:
        return all(
            rank in self._records
            and len(self._records[rank]) >= next(iter(self._records[rank].values())).stats.parts
            for rank in ranks
        )

    def describe(self) -> list[dict[str, Any]]:
        """Return what each rank sent, in their order."""
        return [self._describe(rank, self._records[rank]) for rank in sorted(self._records)]

    def _describe(self, rank: int, parts: Mapping[int, KeptRecord]) -> dict[str, Any]:
        records = [parts[part] for part in sorted(parts)]
        last = max(records, key=lambda own: own.received_ns)
        stats = [own.stats for own in records]
        norms = [numbers(own.columns[L2]) for own in stats if L2 in own.columns]
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
            (own.session, own.stats.manifest_id) in self.layouts
            for parts in self._records.values()
            for own in parts.values()
        ):
            return [None] * len(places)
        return [list(self._of_layer(place)) for place in places]

    def _of_layer(self, place: int) -> Iterator[dict[str, Any]]:
        for rank in sorted(self._records):
            for own in self._records[rank].values():
                index = self.layouts[own.session, own.stats.manifest_id]
                for at in np.flatnonzero(index == place).tolist():
                    yield {"rank": rank} | _numbers(own.stats, at)


def _numbers(stats: Stats, at: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in SHOWN:
        column = stats.columns.get(name)
        known = column is not None and at < column.count
        value = float(numbers(column)[at]) if known and column is not None else None
        found[name] = None if name == LOCAL_L2 and value is not None and value < 0.0 else value
    return found


def _first(stats: Sequence[Stats], name: Scalar) -> float | None:
    return next((own.scalars[name] for own in stats if name in own.scalars), None)
