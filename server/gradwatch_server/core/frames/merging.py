"""Merging: the records that all ranks sent of one step make its frame."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from typing import Final

import numpy as np

from gradwatch_server.core.frames.assembler import Gathered
from gradwatch_server.core.frames.frame import (
    COLUMNS,
    FIRST_NONFINITE,
    L2,
    RUNNING_MAX,
    BoolArray,
    FloatArray,
    Frame,
    RankPart,
)
from gradwatch_server.core.frames.rows import L2_MIN, PEAK, merge_two, nonfinite
from gradwatch_server.core.frames.shards import Block, join

_SAFE_SQUARES: Final = (1e-200, 1e200)
"""Between these a plain sum of squares has neither overflowed nor lost what matters."""


def merge(gathered: Gathered[RankPart], num_layers: int, world: int) -> Frame:
    """Put the records of one step together."""
    parts = gathered.items
    names = set().union(*(part.values for part in parts))
    num_rows = PEAK + (RUNNING_MAX in names)
    blocks, num_partial = join(
        [(alike[0].layout, _merge_alike(alike, num_rows)) for alike in _by_layout(parts)]
    )
    rows, present = _place(blocks, np.full((num_rows, num_layers), np.nan))
    bad = present & nonfinite(rows)
    for array in (present, bad, rows):
        array.flags.writeable = False  # readers in other threads hold them
    whole = all(part.layout.pieces is None for part in parts)
    return Frame(
        step=gathered.step,
        bad_step=_bad_step(gathered),
        received_ns=gathered.received_ns,
        parts=parts,
        present=present,
        nonfinite=bad,
        l2_max=rows[PEAK] if len(rows) > PEAK else rows[L2],
        l2_min=rows[L2_MIN],
        measured=tuple(row for row, name in enumerate(COLUMNS) if name in names),
        columns=rows[: len(COLUMNS)],
        num_partial=num_partial,
        total_norm=_of_ranks(parts) if whole else _joined(rows[L2, present], num_partial),
        loss=_loss(parts),
        loss_scale=_smallest([p.scalars["loss_scale"] for p in parts if "loss_scale" in p.scalars]),
        coverage=len({part.rank for part in parts}) / world,
    )


def _place(blocks: list[Block], rows: FloatArray) -> tuple[FloatArray, BoolArray]:
    """Write blocks into *rows* of all layers; return these, and which layers are there."""
    present = np.zeros(rows.shape[1], dtype=np.bool_)
    for number, (layout, block) in enumerate(blocks):
        index = layout.index
        if number:
            known = present[index]
            rows[:, index] = np.where(known, merge_two(rows[:, index], block), block)
        else:
            rows[:, index] = block
        present[index] = True
    return rows, present


def _by_layout(parts: tuple[RankPart, ...]) -> Iterable[list[RankPart]]:
    """Gather the records of the same layout: replicas share one object."""
    found: dict[int, list[RankPart]] = {}
    for part in parts:
        found.setdefault(id(part.layout), []).append(part)
    return found.values()


def _merge_alike(parts: list[RankPart], num_rows: int) -> FloatArray:
    """Put records of the same layout together: (rows, own layers)."""
    block = np.full((num_rows, len(parts[0].layout.index)), np.nan)
    for row, name in enumerate(COLUMNS):
        values = [part.values[name] for part in parts if name in part.values]
        if values:
            block[row] = reduce(np.maximum if row == L2 else np.fmax, values)
    block[L2_MIN] = reduce(np.minimum, [part.values["l2"] for part in parts])
    if num_rows > PEAK:
        block[PEAK] = reduce(np.maximum, [part.peak for part in parts])
    return block


def _bad_step(gathered: Gathered[RankPart]) -> int:
    """Return the earliest step that a record names, if it is one since the last frame."""
    named = (part.scalars.get(FIRST_NONFINITE, math.nan) for part in gathered.items)
    steps = [step for step in named if gathered.after < step <= gathered.step]
    return int(min(steps, default=gathered.step))


def _of_ranks(parts: tuple[RankPart, ...]) -> float:
    """Largest over ranks of the L2 norm over all layers, over the parts of each together."""
    layers: dict[int, list[FloatArray]] = {}
    for part in parts:
        layers.setdefault(part.rank, []).append(part.values["l2"])
    return _largest(
        [total_norm(own[0] if len(own) == 1 else np.concatenate(own)) for own in layers.values()]
    )


def _joined(l2: FloatArray, num_partial: int) -> float | None:
    """L2 norm over layers put together; unknown if one is not, and the others are finite."""
    total = total_norm(l2)
    return None if num_partial and math.isfinite(total) else total


def total_norm(l2: FloatArray) -> float:
    """Return the L2 norm of the layers together: √Σl2², scaled so that no square overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        squared = float(np.dot(l2, l2))
    if _SAFE_SQUARES[0] < squared < _SAFE_SQUARES[1]:
        return math.sqrt(squared)
    largest = float(np.abs(l2).max(initial=0.0))
    if not math.isfinite(largest) or largest == 0.0:
        return largest
    return largest * float(np.sqrt(np.square(l2 / largest).sum()))


def _largest(values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values, default=math.nan)


def _smallest(values: list[float]) -> float | None:
    if not values:
        return None
    return math.nan if any(map(math.isnan, values)) else min(values)


def _loss(parts: tuple[RankPart, ...]) -> float | None:
    """Mean over the records with a loss, weighted by samples if all of these count theirs."""
    given = [part.scalars for part in parts if "loss" in part.scalars]
    if not given:
        return None
    sizes = [scalars.get("batch_size", 0.0) for scalars in given]
    if not all(0.0 < size < math.inf for size in sizes):
        sizes = [1.0] * len(given)
    # Divided first: the sum of finite losses, or sizes, may overflow.
    largest = max(sizes)
    total = math.fsum(size / largest for size in sizes)
    return sum(
        scalars["loss"] * (size / largest / total)
        for scalars, size in zip(given, sizes, strict=True)
    )
