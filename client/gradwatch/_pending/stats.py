"""A STATS record whose numbers are on their way: taken apart and unscaled on the host."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from gradwatch._layers.pieces import piece_slices
from gradwatch._pending.numbers import Values
from gradwatch._pending.outputs import OutputReader
from gradwatch._pending.record import PendingRecord
from gradwatch._pending.unscaled import unscaled
from gradwatch._statistics.digest_columns import join_bits
from gradwatch_wire import Column, Manifest, Stats
from gradwatch_wire.columns import COUNT_COLUMNS, INFS, L2, L2_MAX, NANS, UPDATE_COLUMNS
from gradwatch_wire.names import Inspection, Label, Scalar
from gradwatch_wire.records import LabelValue


class StepRow(NamedTuple):
    """Numbers of one step that the host knows.

    Args:
        ended_s: When it ended, by a clock that only runs.
        loss: Its loss, None if none was given, or while it is on an accelerator.
        lr: Its learning rate, None if that is not on the host.
    """

    step: int
    ended_s: float = math.nan
    loss: float | None = None
    lr: float | None = None
    is_skipped: bool = False
    looked_at: Inspection = Inspection.NONE


@dataclass(slots=True, kw_only=True)
class StatsFrame:
    """Facts of a STATS record before its numbers have arrived; see `StepSample`.

    Args:
        columns: What each of the first values is: its column, and the places in it.
        scalars: What each of the others is; those of one name are added up.
        scaled: Columns and scalars that still carry the loss scale, which is one of the scalars.
        history: Rows of the steps since the last record, after the row that they follow; none if
            there are no such steps.
        late_losses: Places of the steps whose losses were on an accelerator: these come after the
            scalars, as one value, if there are any.
        outputs: Reads what comes then; None if nothing does. Whatever comes last tells of an
            optimizer that was called whether it has skipped the update itself: not 0 if so.
        quiet_step: The newest step before at which a sentinel that looked at all was quiet, or -1.
        batch: Identity of the batch, empty if nobody gave it.
    """

    step: int
    manifest_id: int
    num_layers: int
    part: int
    parts: int
    num_pieces: int
    labels: Mapping[str, LabelValue]
    columns: Sequence[tuple[str, Sequence[int]]]
    scalars: Sequence[str]
    known: Mapping[str, float]
    scaled: Collection[str]
    history: Sequence[StepRow] = ()
    late_losses: Sequence[int] = ()
    outputs: OutputReader | None = None
    quiet_step: int = -1
    batch: str = ""


class SeenSteps:
    """Newest steps of a watch that were measured in full; the sender learns of them.

    Attributes:
        good: Newest one that was finite, -1 before there is one.
        bad: Newest one in which a gradient was NaN or Inf, -1 before there is one.
    """

    __slots__ = ("bad", "good")

    def __init__(self) -> None:
        self.good = self.bad = -1


class PendingStats(PendingRecord):
    """A STATS record; several if its layers are divided."""

    def __init__(
        self,
        frame: StatsFrame,
        values: Values,
        seen_steps: SeenSteps,
        manifests: Iterable[Manifest] = (),
    ) -> None:
        self._frame = frame
        self._seen_steps = seen_steps
        super().__init__(frame.step, values, manifests)

    def _make(self, values: Sequence[Sequence[float]]) -> list[Stats]:
        frame, left = self._frame, iter(values)
        columns = self._columns(left)
        scalars = self._scalars(left)
        self._unscale(columns, scalars)
        join_bits(columns)
        late_losses = next(left) if frame.late_losses else ()
        history = _pack_history(
            frame.history, dict(zip(frame.late_losses, late_losses, strict=True))
        )
        activations = None
        if frame.outputs is not None:
            frame.outputs.take(left)
            norms = (*columns.get(L2, ()), *columns.get(L2_MAX, ()))
            magnitudes, found = frame.outputs.result(is_good=all(map(math.isfinite, norms)))
            activations = Column.pack("<f8", magnitudes)
            scalars |= found
        labels = dict(frame.labels)
        if any(any(found_inf) for found_inf in left):
            labels[Label.TAKEN] = False
            columns = {name: each for name, each in columns.items() if name not in UPDATE_COLUMNS}
        if not any(any(columns.get(name, ())) for name in (NANS, INFS)):
            columns.pop(NANS, None)
            columns.pop(INFS, None)
        last_good_step = self._inspect(columns, scalars)
        return [
            Stats(
                manifest_id=frame.manifest_id + number,
                step=self.step,
                labels=labels,
                scalars=scalars,
                columns={name: _column(name, each[piece]) for name, each in columns.items()},
                part=frame.part * frame.num_pieces + number,
                parts=frame.parts * frame.num_pieces,
                activations=None if number else activations,
                last_good_step=last_good_step,
                history={} if number else history,
                batch=frame.batch,
            )
            for number, piece in enumerate(piece_slices(frame.num_layers, frame.num_pieces))
        ]

    def _inspect(self, columns: dict[str, list[float]], scalars: dict[str, float]) -> int:
        """Return the newest step before that was good, and note whether this one is.

        Of the parts of a step, and of several collections in one, that is not known.
        """
        frame = self._frame
        norms = columns[L2]  # their sum may overflow
        is_finite = NANS not in columns and (
            math.isfinite(sum(norms)) or all(map(math.isfinite, norms))
        )
        if not is_finite:
            self._seen_steps.bad = self.step
        if frame.parts > 1 or L2_MAX in columns:
            return -1
        last_good_step = max(frame.quiet_step, self._seen_steps.good)
        if is_finite and math.isfinite(scalars.get(Scalar.LOSS, 0.0)):
            self._seen_steps.good = self.step
        return last_good_step if last_good_step < self.step else -1

    def _columns(self, values: Iterator[Sequence[float]]) -> dict[str, list[float]]:
        columns: dict[str, list[float]] = {}
        for name, places in self._frame.columns:
            column = columns.setdefault(name, [math.nan] * self._frame.num_layers)
            for place, number in zip(places, next(values), strict=True):
                column[place] = number
        return columns

    def _scalars(self, values: Iterator[Sequence[float]]) -> dict[str, float]:
        scalars = dict(self._frame.known)
        for name in self._frame.scalars:
            (number,) = next(values)
            # The probe has several sums; a NaN in any shows in their sum.
            scalars[name] = scalars.get(name, 0.0) + number
        return scalars

    def _unscale(self, columns: dict[str, list[float]], scalars: dict[str, float]) -> None:
        for name in self._frame.scaled:
            scale = scalars[Scalar.LOSS_SCALE]
            if name in columns:
                columns[name] = unscaled(columns[name], scale)
            elif name in scalars:
                (scalars[name],) = unscaled((scalars[name],), scale)


def _pack_history(rows: Sequence[StepRow], late_losses: Mapping[int, float]) -> dict[str, Column]:
    """Return the columns of a history, none without any row."""
    if not rows:
        return {}
    own = rows[1:]
    losses = [late_losses.get(place, row.loss) for place, row in enumerate(own)]
    is_given = [loss is not None for loss in losses]
    columns = {
        "step": Column.pack("<u8", (row.step for row in own)),
        "step_time_s": Column.pack("<f8", (b.ended_s - a.ended_s for a, b in pairwise(rows))),
        "looked_at": Column.pack("<u4", (row.looked_at for row in own)),
    }
    if any(is_given):
        known = (math.nan if loss is None else loss for loss in losses)
        columns["loss"] = Column.pack("<f8", known)
    if any(is_given) and not all(is_given):
        columns["has_loss"] = Column.pack("<u4", is_given)
    if any(row.lr is not None for row in own):
        rates = (math.nan if row.lr is None else row.lr for row in own)
        columns["lr"] = Column.pack("<f8", rates)
    if any(row.is_skipped for row in own):
        columns["skipped"] = Column.pack("<u4", (row.is_skipped for row in own))
    return columns


def _column(name: str, values: Sequence[float]) -> Column:
    if name in COUNT_COLUMNS and all(map(math.isfinite, values)):
        return Column.pack("<u8", map(int, values))
    return Column.pack("<f8", values)
