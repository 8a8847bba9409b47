"""Steps of an attempt that are asked for, checked against what is kept."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, HTTPException, Query

from gradwatch_server.api.etags import boot_of
from gradwatch_server.api.state import ApiState
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.curves.buckets import width_for
from gradwatch_server.curves.columns import RUN_TABLE
from gradwatch_server.curves.facts import Span
from gradwatch_server.curves.reader import History
from gradwatch_wire.limits import MAX_STEP

MAX_CELLS: Final = 4_000_000
"""Numbers of one picture at most, as arrays."""

MAX_JSON_CELLS: Final = 50_000
"""The same as JSON, which takes ten times the bytes and longer to write."""

MAX_NEWEST: Final = 4_096

_From = Annotated[int | None, Query(ge=0, le=MAX_STEP, description="First step.")]
_To = Annotated[int | None, Query(ge=0, le=MAX_STEP, description="Last step.")]
_After = Annotated[int | None, Query(ge=0, le=MAX_STEP, description="Last step that you have.")]
_Last = Annotated[
    int | None, Query(ge=1, le=MAX_NEWEST, description="Number of the newest steps with a record.")
]
Epoch = Annotated[
    int | None, Query(ge=0, lt=1 << 53, description="Number of times that the steps went back.")
]


@dataclass(frozen=True, slots=True)
class StepRange:
    """Steps that are asked for, as the query says it; None is what it does not say.

    Args:
        after: The last step that the asker has.
        newest: So many of the newest steps with a record.
    """

    epoch: int | None = None
    first: int | None = None
    last: int | None = None
    after: int | None = None
    newest: int | None = None

    @property
    def is_all(self) -> bool:
        """Tell whether the query does not say where they begin or end."""
        return self.first is self.last is self.newest is None


async def _asked(
    from_: Annotated[_From, Query(alias="from")] = None,
    to: _To = None,
    last: _Last = None,
    after: _After = None,
    epoch: Epoch = None,
) -> StepRange:
    return StepRange(epoch, from_, to, after, last)


Steps = Annotated[StepRange, Depends(_asked)]
"""The type of the parameter by which a route gets the steps that are asked for."""


@dataclass(frozen=True, slots=True)
class Range:
    """Steps of one epoch of an attempt.

    Args:
        span: What is kept of the epoch, None without any step.
        after: The last step that the asker has, None if it has nothing.
    """

    view: RunView
    history: History
    span: Span | None
    first: int
    last: int
    after: int | None
    numbers: dict[str, Any]

    def width(self, points: int, tables: Collection[str] = ()) -> int:
        """Return the width that gives *points* buckets at most, and that all steps are kept in.

        Args:
            tables: Tables that are read, that of the run if all of its steps are.
        """
        if self.span is None:
            return 1
        histories = {self.history, *map(self.history.of_table, tables)}
        if RUN_TABLE in tables and self.history.steps is not None:
            histories.add(self.history.steps)
        finest = (history.finest(self.span.epoch, self.first) for history in histories)
        return max(width_for(self.first, self.last, points), *finest)

    def numbered(self, width: int) -> tuple[int, int]:
        """Return the first and the last bucket that the asker does not have.

        The one that `after` is in is among them as long as it may grow.
        """
        first = self.first // width
        if self.after is not None:
            first = max(first, (self.after + 1) // width)
        return first, self.last // width


def find_range(view: RunView, api: ApiState, history: History, asked: StepRange) -> Range:
    """Return the steps that are asked for, as far as they are kept."""
    epoch, first, last, after = asked.epoch, asked.first, asked.last, asked.after
    spans = {span.epoch: span for span in history.spans()}
    if epoch is not None and epoch not in spans:
        known = f"{min(spans)} to {max(spans)}" if spans else "none yet"
        raise HTTPException(404, f"no epoch {epoch} of run {view.name!a}; kept are {known}")
    span = spans[epoch] if epoch is not None else (spans[max(spans)] if spans else None)
    if first is not None and last is not None and first > last:
        raise HTTPException(422, f"query from: a step up to `to`, {last}, got {first}")
    kept = {
        "run": view.name,
        "attempt": view.attempt,
        "boot": boot_of(api),
        "revision": view.revision,
        "epoch": span.epoch if span else (epoch or 0),
        "kept_from": span.first if span else None,
        "last_step": span.last if span else None,
    }
    if span is None:
        return Range(view, history, None, first or 0, (first or 0) - 1, after, kept)
    if last is not None and last < span.first:
        raise HTTPException(422, f"query to: steps from {span.first} on are kept, got {last}")
    begin = first
    if begin is None and asked.newest is not None:
        begin = history.newest(span.epoch, asked.newest)
    begin = max(begin or 0, span.first)
    end = span.last if last is None else min(last, span.last)
    return Range(view, history, span, begin, end, after, kept)


def check_cells(cells: int, *, as_json: bool, advice: str) -> None:
    """Refuse what would be too large."""
    limit = MAX_JSON_CELLS if as_json else MAX_CELLS
    if cells > limit:
        form = "as JSON" if as_json else "as safetensors"
        raise HTTPException(422, f"{cells} numbers are asked for, {form} at most {limit}: {advice}")
