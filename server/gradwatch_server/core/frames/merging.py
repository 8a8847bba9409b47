"""Merging: the records that all ranks sent of one step make its frame."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Final, TypeAlias

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray, any_true
from gradwatch_server.core.frames.assembler import StepRecords
from gradwatch_server.core.frames.distribution import Distribution
from gradwatch_server.core.frames.frame import Frame, RankRecord
from gradwatch_server.core.frames.layout import Layout, Shards
from gradwatch_server.core.frames.replicas import Replicas, compare, gather_replicas
from gradwatch_server.core.frames.rows import (
    BESIDE_GRADIENT,
    COUNT_ROWS,
    FRAME_COLUMNS,
    L2_MIN,
    NORM_ROWS,
    ROW_OF,
    ROWS,
    merge_replicas,
    merge_shards,
    merge_two,
    withhold,
)
from gradwatch_wire import norms
from gradwatch_wire.columns import L2, L2_MAX, LOCAL_L2
from gradwatch_wire.names import Label, Scalar

_SAFE_SQUARES: Final = (1e-200, 1e200)
"""Between these a plain sum of squares has neither overflowed nor lost what matters."""

BLOCK: Final = 8_192
"""Values that are squared and summed at once. OpenBLAS divides more than 10,000 among threads and
waits for them, which takes 2 µs or, where something else has the processor, 10 ms."""

_COLUMN_OF: Final = tuple(L2 if row.name in (L2_MIN, L2_MAX) else row.name for row in ROWS)
"""Column of a record of which each row is made."""

Block: TypeAlias = tuple[Layout, FloatArray]
"""Rows, as `rows` describes them, of the layers of a layout: (rows, own layers)."""


def join(
    blocks: Sequence[Block], has_all: Callable[[], bool] = lambda: False
) -> tuple[list[Block], int]:
    """Replace the blocks of sharded layers by one of whole layers.

    Args:
        has_all: Returns whether all ranks are among them: then a rank that lacks its shard of an
            expert had no token for it, and its gradient there is zero.

    Returns:
        The blocks, and how many layers lack a shard: these are left out, or without their norms if
        a shard of them is non-finite.
    """
    whole = [block for block in blocks if block[0].shards is None]
    sharded = [block for block in blocks if block[0].shards is not None]
    if not sharded:
        return whole, 0
    joined, num_partial = _put_together(sharded, has_all)
    return [*whole, joined], num_partial


def _put_together(blocks: Sequence[Block], has_all: Callable[[], bool]) -> tuple[Block, int]:
    layer, shards = _side_by_side([layout for layout, _ in blocks])
    order = np.lexsort((shards.number, shards.partition, layer))
    layer, partition, number, count = (
        array[order] for array in (layer, shards.partition, shards.number, shards.count)
    )
    expert = shards.expert[order]
    rows = np.concatenate([block for _, block in blocks], axis=1)[:, order]

    starts = _starts(layer, partition, number)
    rows = merge_replicas(rows, starts)
    layer, partition, count = layer[starts], partition[starts], count[starts]
    expert = expert[starts]

    starts = _starts(layer, partition)
    complete = np.diff(starts, append=len(layer)) == count[starts]
    rows, layer = merge_shards(rows, starts), layer[starts]
    rested = expert[starts] & ~complete
    if rested.any() and has_all():
        rows[np.ix_(BESIDE_GRADIENT, rested)] = np.nan
        complete |= rested
    num_partial = len(np.setdiff1d(layer, layer[complete]))

    kept = complete | _nonfinite(rows)
    withhold(rows, ~complete)
    rows, layer = rows[:, kept], layer[kept]
    # Ranks that disagree on how a layer is divided are replicas of each other.
    starts = _starts(layer)
    return (Layout(layer[starts]), merge_replicas(rows, starts)), num_partial


def _side_by_side(layouts: Sequence[Layout]) -> tuple[IndexArray, Shards]:
    """Return layer and shard of all entries of the layouts, (all own layers,) each."""
    shards = [layout.shards for layout in layouts if layout.shards is not None]
    return np.concatenate([layout.index for layout in layouts]), Shards(
        partition=np.concatenate([shard.partition for shard in shards]),
        number=np.concatenate([shard.number for shard in shards]),
        count=np.concatenate([shard.count for shard in shards]),
        expert=np.concatenate([shard.expert for shard in shards]),
    )


def _starts(*keys: IndexArray) -> IndexArray:
    """Return where a run of equal *keys*, (entries,) each and sorted, begins."""
    changes = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    first = np.ones(min(1, len(keys[0])), dtype=np.bool_)
    return np.flatnonzero(np.concatenate([first, changes]))


def merge(
    gathered: StepRecords[RankRecord],
    num_layers: int,
    world: int,
    distribution: Distribution | None = None,
) -> Frame:
    """Put the records of one step together. Callers have silenced numpy: squares may overflow.

    Args:
        distribution: Layers that several pipeline stages hold, if there may be any.
    """
    parts = gathered.items
    replicas = gather_replicas(parts)
    blocks = [(replica.parts[0].layout, _merge_alike(replica.distinct)) for replica in replicas]
    whole, num_partial = not [layout for layout, _ in blocks if layout.shards is not None], 0
    if not whole:
        blocks, num_partial = join(blocks, partial(_has_all, parts, world))
    rows, present = _place(blocks, num_layers)
    bad = _nonfinite(rows)
    bad &= present
    counted, unclear = present, None
    if distribution is not None and (distribution.unclear or distribution.copies):
        copies, unclear = distribution.masks(num_layers)
        unclear &= present
        num_partial += int(np.count_nonzero(unclear))
        withhold(rows, unclear)
        present &= ~unclear | bad
        counted = present & ~copies
    for array in (present, bad, rows):
        array.setflags(write=False)  # readers in other threads hold them
    l2 = rows[ROW_OF[L2]]
    scalars = _scalars_of(parts)
    columns = {tuple(part.record.columns) for replica in replicas for part in replica.distinct}
    loss = _loss(parts, scalars) if Scalar.LOSS in scalars else None
    has_nonfinite = any_true(bad)
    bad_step = _bad_step(gathered, scalars)
    last_good_step = min([part.last_good_step for part in parts])
    disagreement = compare(replicas, num_layers) if len(parts) > 1 else None
    if disagreement is not None and unclear is not None:  # they may be different layers
        disagreement.weights &= ~unclear
        disagreement.weights_seen &= ~unclear
    return Frame(
        step=gathered.step,
        bad_step=bad_step,
        received_ns=gathered.received_ns,
        parts=parts,
        present=present,
        nonfinite=bad,
        l2_max=rows[ROW_OF[L2_MAX]],
        l2_min=rows[ROW_OF[L2_MIN]],
        measured=_measured(frozenset(columns)),
        columns=rows[: len(FRAME_COLUMNS)],
        num_partial=num_partial,
        total_norm=_of_ranks(replicas)
        if whole and counted is present and _hold_all(replicas, present)
        else _joined(l2[counted], num_partial),
        loss=loss,
        point=_common({labels.get(Label.POINT) for alike in replicas for labels in alike.labels}),
        loss_scale=_smallest(scalars[Scalar.LOSS_SCALE]) if Scalar.LOSS_SCALE in scalars else None,
        coverage=len({part.rank for part in parts}) / world,
        lr=_largest(scalars[Scalar.LR]) if Scalar.LR in scalars else None,
        step_time_s=_largest(scalars[Scalar.STEP_TIME_S])
        if Scalar.STEP_TIME_S in scalars
        else None,
        disagreement=disagreement,
        has_nonfinite=has_nonfinite,
        is_finite=not has_nonfinite and math.isfinite(loss or 0.0),
        has_all_layers=0 not in present.tobytes(),
        has_local_norms=bool([names for names in columns if LOCAL_L2 in names]),
        has_outputs=bool([replica for replica in replicas if replica.parts[0].layout.modules]),
        last_good_step=last_good_step if 0 <= last_good_step < bad_step else None,
    )


def _nonfinite(rows: FloatArray) -> BoolArray:
    """Return (layers,) whether something non-finite was seen."""
    first, *others = NORM_ROWS
    finite: BoolArray = np.isfinite(rows[first])
    for norm in others:
        finite &= np.isfinite(rows[norm])
    bad = np.logical_not(finite, out=finite)
    for count in COUNT_ROWS:
        if np.logical_or.reduce(rows[count]):  # of NaN, or hardly ever
            bad |= rows[count] > 0
    return bad


def _scalars_of(parts: Sequence[RankRecord]) -> dict[str, list[float]]:
    """Return name to the numbers of the records that have one."""
    if len(parts) == 1:
        return {name: [number] for name, number in parts[0].scalars.items()}
    given = [part.scalars for part in parts]
    names = set[str]().union(*given)
    return {name: [each[name] for each in given if name in each] for name in names}


def _common(labels: set[object]) -> str | None:
    """Return the text that all records have for a label, None if they differ or have none."""
    label = labels.pop() if len(labels) == 1 else None
    return label if isinstance(label, str) else None


@lru_cache(maxsize=256)
def _measured(columns: frozenset[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the columns of a frame that are among those of its records."""
    names = set().union(*columns)
    return tuple(name for name in FRAME_COLUMNS if name in names)


def _place(blocks: list[Block], num_layers: int) -> tuple[FloatArray, BoolArray]:
    if len(blocks) == 1:  # nearly always
        layout, rows = blocks[0]
        if layout.in_order and rows.shape[1] == num_layers:
            present = np.empty(num_layers, dtype=np.bool_)
            present[:] = True
            return rows, present
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


def _merge_alike(parts: list[RankRecord]) -> FloatArray:
    """Put distinct records of a layout together: (rows, own layers).

    An equal one would change no largest, and no smallest, number.
    """
    block = _rows_of(parts[0])
    for part in parts[1:]:
        other = _rows_of(part)
        for number, row in enumerate(ROWS):
            row.over_replicas(block[number], other[number], out=block[number])
    return block


def _rows_of(part: RankRecord) -> FloatArray:
    """Return (rows, own layers) what a record has, NaN where it has nothing."""
    values = part.values
    rows = np.empty((len(ROWS), part.layout.num_layers))
    rows[:] = np.nan
    for number, column in enumerate(_COLUMN_OF):
        if column in values:
            rows[number] = values[column]
    if L2_MAX in values:
        np.maximum(values[L2], values[L2_MAX], out=rows[ROW_OF[L2_MAX]])
    return rows


def _bad_step(gathered: StepRecords[RankRecord], scalars: Mapping[str, list[float]]) -> int:
    """Return the earliest step that a record names, if it is one since the last frame.

    Of a training of one process that is also the first one whose loss was not finite.
    """
    named = scalars.get(Scalar.FIRST_NONFINITE_STEP, [])
    history = gathered.items[0].history if len(gathered.items) == 1 else None
    if history is not None and history.bad_step is not None:
        named = [*named, history.bad_step]
    if not named:  # nearly always
        return gathered.step
    steps = [step for step in named if gathered.after < step <= gathered.step]
    return int(min(steps, default=gathered.step))


def _has_all(parts: Sequence[RankRecord], world: int) -> bool:
    counts = Counter(part.rank for part in parts)
    return len(counts) == world and all(counts[part.rank] == part.parts for part in parts)


def _hold_all(replicas: Sequence[Replicas], present: BoolArray) -> bool:
    """Tell whether each rank has all layers that are there, and not others than another rank."""
    if len(replicas) == 1:
        return True
    held: dict[int, int] = {}
    for replica in replicas:
        for part in replica.parts:
            held[part.rank] = held.get(part.rank, 0) + part.layout.num_layers
    return min(held.values()) == np.count_nonzero(present)


def _of_ranks(replicas: Sequence[Replicas]) -> float:
    """Largest over ranks of the L2 norm over all layers, over the parts of each together."""
    is_one = len(replicas) == 1
    if is_one and len(replicas[0].distinct) == 1:  # nearly always
        return _total_norm(replicas[0].distinct[0].values[L2])
    norms: dict[int, list[FloatArray]] = {}
    for replica in replicas:
        for part in replica.distinct if is_one else replica.parts:
            norms.setdefault(part.rank, []).append(part.values[L2])
    of_ranks = [each[0] if len(each) == 1 else np.concatenate(each) for each in norms.values()]
    return _largest([_total_norm(norm) for norm in of_ranks])


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
    if math.isnan(squared):  # squares do not cancel: one of them is NaN
        return math.nan
    if _SAFE_SQUARES[0] < squared < _SAFE_SQUARES[1]:
        return math.sqrt(squared)
    return float(norms.total_norm(np.abs(l2), np)) if len(l2) else 0.0


def _sum_of_squares(values: FloatArray) -> float:
    if len(values) <= BLOCK:
        return float(values.dot(values))
    blocks = (values[first : first + BLOCK] for first in range(0, len(values), BLOCK))
    return sum(float(block.dot(block)) for block in blocks)


def _largest(values: list[float]) -> float:
    if len(values) == 1:
        return values[0]
    return math.nan if any(map(math.isnan, values)) else max(values, default=math.nan)


def _smallest(values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else min(values)


def _loss(parts: Sequence[RankRecord], scalars: Mapping[str, list[float]]) -> float:
    """Mean over the records with a loss, weighted by samples if all of these count theirs."""
    losses = scalars[Scalar.LOSS]
    if len(losses) == 1:
        return losses[0]
    sizes: list[float] = []
    if Scalar.BATCH_SIZE in scalars:
        given = [part.scalars for part in parts if Scalar.LOSS in part.scalars]
        sizes = [each.get(Scalar.BATCH_SIZE, 0.0) for each in given]
    if not sizes or not all(0.0 < size < math.inf for size in sizes):
        sizes = [1.0] * len(losses)
    # Divided first: the sum of finite losses, or sizes, may overflow.
    largest = max(sizes)
    shares = [size / largest for size in sizes]
    total = math.fsum(shares)
    mean = sum([loss * (share / total) for loss, share in zip(losses, shares, strict=True)])
    if not all(map(math.isfinite, losses)):
        return mean
    return max(min(losses), min(mean, max(losses)))  # which rounding may leave
