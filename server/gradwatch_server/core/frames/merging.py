"""Merging: the records that all ranks sent of one step make its frame."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.frames.assembler import Gathered
from gradwatch_server.core.frames.frame import Frame, RankPart
from gradwatch_server.core.frames.layout import Layout, Shards
from gradwatch_server.core.frames.replicas import Replicas, compare, gather_replicas
from gradwatch_server.core.frames.rows import (
    FRAME_COLUMNS,
    L2_MIN,
    ROW_OF,
    ROWS,
    merge_replicas,
    merge_shards,
    merge_two,
    nonfinite,
    withhold,
)
from gradwatch_wire import norms
from gradwatch_wire.columns import L2, L2_MAX
from gradwatch_wire.names import Label, Scalar

_SAFE_SQUARES: Final = (1e-200, 1e200)
"""Between these a plain sum of squares has neither overflowed nor lost what matters."""

BLOCK: Final = 8_192
"""Values that are squared and summed at once. OpenBLAS divides more than 10,000 among threads and
waits for them, which takes 2 µs or, where something else has the processor, 10 ms."""

Block: TypeAlias = tuple[Layout, FloatArray]
"""Rows, as `rows` describes them, of the layers of a layout: (rows, own layers)."""


def join(blocks: Sequence[Block]) -> tuple[list[Block], int]:
    """Replace the blocks of sharded layers by one of whole layers.

    Returns:
        The blocks, and how many layers lack a shard: these are left out, or without their norms if
        a shard of them is non-finite.
    """
    whole = [block for block in blocks if block[0].shards is None]
    sharded = [block for block in blocks if block[0].shards is not None]
    if not sharded:
        return whole, 0
    joined, num_partial = _put_together(sharded)
    return [*whole, joined], num_partial


def _put_together(blocks: Sequence[Block]) -> tuple[Block, int]:
    layer, shards = _side_by_side([layout for layout, _ in blocks])
    order = np.lexsort((shards.number, shards.partition, layer))
    layer, partition, number, count = (
        array[order] for array in (layer, shards.partition, shards.number, shards.count)
    )
    rows = np.concatenate([block for _, block in blocks], axis=1)[:, order]

    starts = _starts(layer, partition, number)
    rows = merge_replicas(rows, starts)
    layer, partition, count = layer[starts], partition[starts], count[starts]

    starts = _starts(layer, partition)
    complete = np.diff(starts, append=len(layer)) == count[starts]
    rows, layer = merge_shards(rows, starts), layer[starts]
    num_partial = len(np.setdiff1d(layer, layer[complete]))

    kept = complete | nonfinite(rows)
    withhold(rows, ~complete)
    rows, layer = rows[:, kept], layer[kept]
    # Ranks that disagree on how a layer is divided are replicas of each other.
    starts = _starts(layer)
    return (Layout(layer[starts]), merge_replicas(rows, starts)), num_partial


def _side_by_side(layouts: Sequence[Layout]) -> tuple[IndexArray, Shards]:
    """Return layer and shard of all entries of the layouts, (all own layers,) each."""
    shards = [layout.shards for layout in layouts if layout.shards is not None]
    return np.concatenate([layout.index for layout in layouts]), Shards(
        partition=np.concatenate([own.partition for own in shards]),
        number=np.concatenate([own.number for own in shards]),
        count=np.concatenate([own.count for own in shards]),
    )


def _starts(*keys: IndexArray) -> IndexArray:
    """Return where a run of equal *keys*, (entries,) each and sorted, begins."""
    changes = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    first = np.ones(min(1, len(keys[0])), dtype=np.bool_)
    return np.flatnonzero(np.concatenate([first, changes]))


def merge(gathered: Gathered[RankPart], num_layers: int, world: int) -> Frame:
    """Put the records of one step together."""
    parts = gathered.items
    replicas = gather_replicas(parts)
    blocks, num_partial = join(
        [(own.parts[0].layout, _merge_alike(own.distinct)) for own in replicas]
    )
    rows, present = _place(blocks, num_layers)
    bad = nonfinite(rows)
    bad &= present
    for array in (present, bad, rows):
        array.flags.writeable = False  # readers in other threads hold them
    whole = all(own.parts[0].layout.shards is None for own in replicas)
    l2 = rows[ROW_OF[L2]]
    scalars = _scalars_of(parts)
    return Frame(
        step=gathered.step,
        bad_step=_bad_step(gathered, scalars.get(Scalar.FIRST_NONFINITE_STEP, ())),
        received_ns=gathered.received_ns,
        parts=parts,
        present=present,
        nonfinite=bad,
        l2_max=rows[ROW_OF[L2_MAX]],
        l2_min=rows[ROW_OF[L2_MIN]],
        measured=_measured(
            frozenset(tuple(part.columns) for own in replicas for part in own.distinct)
        ),
        columns=rows[: len(FRAME_COLUMNS)],
        num_partial=num_partial,
        total_norm=_of_ranks(replicas) if whole else _joined(l2[present], num_partial),
        loss=_loss(parts, scalars),
        point=_common(labels.get(Label.POINT) for own in replicas for labels in own.labels),
        loss_scale=_smallest(scalars.get(Scalar.LOSS_SCALE, [])),
        coverage=len({part.rank for part in parts}) / world,
        lr=_largest_of(scalars.get(Scalar.LR, [])),
        step_time_s=_largest_of(scalars.get(Scalar.STEP_TIME_S, [])),
        disagreement=compare(replicas, num_layers),
    )


def _scalars_of(parts: Sequence[RankPart]) -> dict[str, list[float]]:
    """Return name to the numbers of the records that have one."""
    given = [part.scalars for part in parts]
    names = set[str]().union(*given)
    return {name: [own[name] for own in given if name in own] for name in names}


def _common(labels: Iterable[object]) -> str | None:
    """Return the text that all records have for a label, None if they differ or have none."""
    known = set(labels)
    label = known.pop() if len(known) == 1 else None
    return label if isinstance(label, str) else None


@lru_cache(maxsize=256)
def _measured(columns: frozenset[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the columns of a frame that are among those of its records."""
    found = set().union(*columns)
    return tuple(name for name in FRAME_COLUMNS if name in found)


def _place(blocks: list[Block], num_layers: int) -> tuple[FloatArray, BoolArray]:
    """Write blocks into rows of all layers; return these, and which layers are there."""
    if len(blocks) == 1:  # nearly always
        layout, rows = blocks[0]
        if layout.in_order and rows.shape[1] == num_layers:
            return rows, np.ones(num_layers, dtype=np.bool_)
    rows = np.full((len(ROWS), num_layers), np.nan)
    present = np.zeros(num_layers, dtype=np.bool_)
    for number, (layout, block) in enumerate(blocks):
        index = layout.index
        if number:
            known = present[index]
            rows[:, index] = np.where(known, merge_two(rows[:, index], block), block)
        else:
            rows[:, index] = block
        present[index] = True
    return rows, present


def _merge_alike(parts: list[RankPart]) -> FloatArray:
    """Put distinct records of a layout together: (rows, own layers).

    An equal one would change no largest, and no smallest, number.
    """
    block = np.empty((len(ROWS), len(parts[0].layout.index)))
    for number, row in enumerate(ROWS):
        values = _values(parts, row.name)
        own = block[number]
        own[:] = values[0] if values else np.nan
        for other in values[1:]:
            row.over_replicas(own, other, out=own)
    return block


def _values(parts: list[RankPart], row: str) -> list[FloatArray]:
    """Return what each record has for a row, (own layers,), of those that have something."""
    if row == L2_MAX:
        return [part.peak for part in parts]
    column = L2 if row == L2_MIN else row
    return [part.values[column] for part in parts if column in part.columns]


def _bad_step(gathered: Gathered[RankPart], named: Iterable[float]) -> int:
    """Return the earliest step that a record names, if it is one since the last frame."""
    steps = [step for step in named if gathered.after < step <= gathered.step]
    return int(min(steps, default=gathered.step))


def _of_ranks(replicas: Sequence[Replicas]) -> float:
    """Largest over ranks of the L2 norm over all layers, over the parts of each together."""
    layers: dict[int, list[FloatArray]] = {}
    is_one = len(replicas) == 1
    for own in replicas:
        for part in own.distinct if is_one else own.parts:
            layers.setdefault(part.rank, []).append(part.values[L2])
    with np.errstate(over="ignore", invalid="ignore"):  # once: for each rank it is half the cost
        return _largest(
            [
                _total_norm(own[0] if len(own) == 1 else np.concatenate(own))
                for own in layers.values()
            ]
        )


def _joined(l2: FloatArray, num_partial: int) -> float | None:
    """L2 norm over layers put together; unknown if one is not, and the others are finite."""
    total = total_norm(l2)
    return None if num_partial and math.isfinite(total) else total


def total_norm(l2: FloatArray) -> float:
    """Return the L2 norm of the layers together, 0.0 without any."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _total_norm(l2)


def _total_norm(l2: FloatArray) -> float:
    # Nothing had to be scaled in most steps; this takes a tenth of the time.
    squared = _sum_of_squares(l2)
    if _SAFE_SQUARES[0] < squared < _SAFE_SQUARES[1]:
        return math.sqrt(squared)
    return float(norms.total_norm(np.abs(l2), np)) if len(l2) else 0.0


def _sum_of_squares(values: FloatArray) -> float:
    if len(values) <= BLOCK:
        return float(values.dot(values))
    blocks = (values[first : first + BLOCK] for first in range(0, len(values), BLOCK))
    return sum(float(block.dot(block)) for block in blocks)


def _largest(values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values, default=math.nan)


def _smallest(values: list[float]) -> float | None:
    if not values:
        return None
    return math.nan if any(map(math.isnan, values)) else min(values)


def _largest_of(values: list[float]) -> float | None:
    return _largest(values) if values else None


def _loss(parts: Sequence[RankPart], scalars: Mapping[str, list[float]]) -> float | None:
    """Mean over the records with a loss, weighted by samples if all of these count theirs."""
    losses = scalars.get(Scalar.LOSS, [])
    if len(losses) < 2:
        return losses[0] if losses else None
    sizes = scalars.get(Scalar.BATCH_SIZE, [])
    if not len(sizes) == len(losses) == len(parts):
        given = [part.scalars for part in parts if Scalar.LOSS in part.scalars]
        sizes = [own.get(Scalar.BATCH_SIZE, 0.0) for own in given]
    if not all(0.0 < size < math.inf for size in sizes):
        sizes = [1.0] * len(losses)
    # Divided first: the sum of finite losses, or sizes, may overflow.
    largest = max(sizes)
    shares = [size / largest for size in sizes]
    total = math.fsum(shares)
    mean = sum([loss * (own / total) for loss, own in zip(losses, shares, strict=True)])
    if not all(map(math.isfinite, losses)):
        return mean
    return max(min(losses), min(mean, max(losses)))  # which rounding may leave
