"""Replicas: records of ranks that hold the same, and by how much their numbers differ.

What an all-reduce leaves behind is equal to the last bit on all ranks (gloo and NCCL hand out the
finished sum). Magnitudes and counts do not depend on the order in which elements are looked at, so
they are compared exactly; sums do, and may differ by rounding where ranks compute them otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.frames.frame import Disagreement, RankRecord
from gradwatch_server.core.frames.layout import Layout
from gradwatch_wire.columns import (
    INFS,
    L1,
    L2,
    LINF,
    NANS,
    NONFINITE_COUNTS,
    WEIGHT_L2,
    WEIGHT_LINF,
    ZEROS,
)
from gradwatch_wire.names import Label, Reduction

EXACT: Final = (LINF, ZEROS, NANS, INFS)
SUMS: Final = (L2, L1)
NORMS: Final = (L2, WEIGHT_L2)
"""Columns in which NaN is a value."""

SAME_NORM: Final = 1e-6
"""Relative difference of two norms of the same gradient, taken before and after a reduction."""

MOVED: Final = 10.0
"""Times as far as the others' weights: what one rank alone did to its own."""

LEAST_MOVED: Final = 1e-6
"""Relative change of a norm below which it is rounding."""

_WEIGHT_NORMS: Final = frozenset({WEIGHT_L2, WEIGHT_LINF})


def by_layout(parts: Iterable[RankRecord]) -> Sequence[list[RankRecord]]:
    """Gather the records of the same layout: replicas share one object."""
    parts = list(parts)
    if not [part for part in parts if part.layout is not parts[0].layout]:  # nearly always
        return [parts] if parts else []
    alike: dict[int, list[RankRecord]] = {}
    for part in parts:
        alike.setdefault(id(part.layout), []).append(part)
    return list(alike.values())


class Replicas(NamedTuple):
    """Records of one step that have the same layout.

    Args:
        distinct: The first, and those that differ from it in a byte: after an all-reduce none does.
        labels: Labels of the first, and those of records that have others.
    """

    parts: list[RankRecord]
    distinct: list[RankRecord]
    labels: list[Mapping[str, object]]


def gather_replicas(parts: Sequence[RankRecord]) -> list[Replicas]:
    if len(parts) == 1:
        return [Replicas(list(parts), list(parts), [parts[0].labels])]
    replicas = []
    for alike in by_layout(parts):
        first, others = alike[0], alike[1:]
        columns = first.record.columns
        distinct = [first, *(other for other in others if other.record.columns != columns)]
        labels = [first.labels, *(other.labels for other in others if other.labels != first.labels)]
        replicas.append(Replicas(alike, distinct, labels))
    return replicas


def compare(gathered: Sequence[Replicas], num_layers: int) -> Disagreement | None:
    """Return by how much ranks differ in what has to be equal; None if there is no such thing.

    Only gradients that were averaged over ranks have to be, and weights of which there are digests:
    a client sends them where it knows that ranks are averaged, or was told to compare them.

    Ranks that hold the same shard of a layer are compared; different shards are not. Nor are the
    gradients of a step that was not taken: those of a micro-batch may not be reduced yet. Those of
    experts are averaged by the script, nobody knows when.
    """
    disagreement: Disagreement | None = None
    firsts: list[RankRecord] = []
    for alike in gathered:
        digested = [part for part in alike.parts if part.weight_bits is not None]
        firsts += digested[:1]
        if len(alike.parts) < 2:
            continue
        is_reduced = all(labels.get(Label.REDUCTION) == Reduction.MEAN for labels in alike.labels)
        if not is_reduced and len(digested) < 2:
            continue
        if disagreement is None:
            disagreement = Disagreement.of_nothing(num_layers)
        index = alike.parts[0].layout.index
        if is_reduced and _is_one_moment(alike.labels):
            _compare_gradients(alike, disagreement)
        if len(digested) > 1:
            disagreement.weights[index] |= _digests_differ(digested)
            disagreement.weights_seen[index] = True
    if len(firsts) > 1:
        disagreement = disagreement or Disagreement.of_nothing(num_layers)
        _compare_layouts(firsts, disagreement)
    if disagreement is not None:
        paths = {labels.get(Label.PATH) for alike in gathered for labels in alike.labels}
        disagreement.is_uniform = len(paths) < 2
        is_alike = not [alike for alike in gathered if len(alike.distinct) > 1]
        disagreement.is_equal = is_alike and not np.count_nonzero(disagreement.weights_seen)
    return disagreement


def _compare_gradients(alike: Replicas, disagreement: Disagreement) -> None:
    """Add the differences between the ranks of one layout; another may have other shards."""
    layout = alike.parts[0].layout
    for kept, names in ((disagreement.exact, EXACT), (disagreement.sums, SUMS)):
        new = _largest(alike.distinct, names)
        if layout.shards is not None:
            new[layout.shards.expert] = np.nan
        kept[layout.index] = np.fmax(kept[layout.index], new)


def _compare_layouts(parts: Sequence[RankRecord], disagreement: Disagreement) -> None:
    """Compare the weights of ranks that hold the same shard, and other layers beside it."""
    keys = np.concatenate([shard_keys(part.layout) for part in parts], axis=1)
    bits = np.concatenate([part.weight_bits for part in parts if part.weight_bits is not None])
    order = np.lexsort(keys[::-1])
    keys, bits = keys[:, order], bits[order]
    is_same = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    layers = keys[0, 1:]
    disagreement.weights_seen[layers[is_same]] = True
    disagreement.weights[layers[is_same & (bits[1:] != bits[:-1])]] = True


def shard_keys(layout: Layout) -> IndexArray:
    """Return (3, own layers) layer, partition and number of the shard."""
    if layout.shards is None:
        return np.stack([layout.index, *np.zeros((2, layout.num_layers), dtype=np.int64)])
    return np.stack([layout.index, layout.shards.partition, layout.shards.number])


def _holders(parts: Iterable[RankRecord], layer: int) -> Iterable[list[tuple[RankRecord, int]]]:
    """Return the records of ranks that hold the same shard of a layer, and its place in each."""
    holders: dict[tuple[int, ...], list[tuple[RankRecord, int]]] = {}
    for part in parts:
        for place in np.flatnonzero(part.layout.index == layer).tolist():
            key = tuple(shard_keys(part.layout)[:, place].tolist())
            holders.setdefault(key, []).append((part, place))
    return holders.values()


def odd_ranks(
    parts: Iterable[RankRecord], layer: int, *, weights: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks that differ from most others in a layer, and all that were compared.

    None differs from most others where no value is that of more than half of them.

    Args:
        weights: Whether it is the digest of the weights in which they do.
    """
    compared: tuple[int, ...] = ()
    for alike in _holders(parts, layer):
        values = _values_of(alike, weights=weights)
        counts = Counter(values.values())
        if len(counts) < 2:
            continue
        compared = tuple(sorted(values))
        ((value, count),) = counts.most_common(1)
        if 2 * count > len(values):
            return tuple(rank for rank in compared if values[rank] != value), compared
    return (), compared


def unreduced_ranks(parts: Iterable[RankRecord], layer: int) -> tuple[int, ...]:
    """Return the ranks whose reduced gradient of a layer is still their own, if not all are.

    The mean over ranks that have different gradients has the norm of none of them but by a chance
    of about one in a hundred thousand. Needs norms from before the reduction.
    """
    is_own: dict[int, bool] = {}
    for part in parts:
        norms, places = part.local_l2, np.flatnonzero(part.layout.index == layer)
        if not len(places):
            continue
        before = -1.0 if norms is None else float(norms[places[0]])
        if not 0.0 < before < np.inf:
            return ()
        after = float(part.values[L2][places[0]])
        is_own[part.rank] = abs(after - before) <= SAME_NORM * before
    unreduced = tuple(sorted(rank for rank, own in is_own.items() if own))
    return unreduced if len(unreduced) < len(is_own) else ()


def moved_ranks(parts: Iterable[RankRecord], layer: int, last: FloatArray) -> tuple[int, ...]:
    """Return the rank whose weights moved far more than the others' since they were equal.

    Args:
        last: (2,) L2 norm and largest magnitude of the weights when they were equal, NaN if never.
    """
    moved: dict[int, float] = {}
    for part in parts:
        places = np.flatnonzero(part.layout.index == layer)
        if len(places) and part.weight_bits is not None and part.columns.keys() >= _WEIGHT_NORMS:
            now = np.array([part.values[name][places[0]] for name in (WEIGHT_L2, WEIGHT_LINF)])
            with np.errstate(divide="ignore", invalid="ignore"):
                moved[part.rank] = float(np.max(np.abs(now - last) / last))
    if len(moved) < 2 or np.isnan(list(moved.values())).any():
        return ()
    farthest = max(moved, key=lambda rank: moved[rank])
    others = max(far for rank, far in moved.items() if rank != farthest)
    return (farthest,) if moved[farthest] > MOVED * max(others, LEAST_MOVED) else ()


def weight_norms(parts: Iterable[RankRecord], layers: BoolArray) -> FloatArray:
    """Return (2, layers) L2 norm and largest magnitude of weights that are equal on all ranks.

    Args:
        layers: (layers,) in which they are; NaN in all others.
    """
    alike_norms = np.full((2, len(layers)), np.nan)
    for alike in by_layout(parts):
        first = next((part for part in alike if part.weight_bits is not None), None)
        if first is not None and first.columns.keys() >= _WEIGHT_NORMS:
            index = first.layout.index
            norms = np.stack([first.values[WEIGHT_L2], first.values[WEIGHT_LINF]])
            # Of a layer whose shards differ there is no one norm.
            alike_norms[:, index] = np.where(first.layout.is_sharded, np.nan, norms)
    return np.where(layers, alike_norms, np.nan)


def weight_differences(parts: Iterable[RankRecord], num_layers: int) -> FloatArray:
    """Return (layers,) the largest relative differences of norms and magnitudes of weights."""
    largest = np.zeros(num_layers)
    for alike in by_layout(parts):
        digested = [part for part in alike if part.weight_bits is not None]
        if len(digested) > 1:
            index = alike[0].layout.index
            differences = _largest(digested, (WEIGHT_L2, WEIGHT_LINF))
            largest[index] = np.maximum(largest[index], differences)
    return largest


def _values_of(alike: list[tuple[RankRecord, int]], *, weights: bool) -> dict[int, str]:
    """Return for each rank the text of what it has in a layer, exact numbers if these differ."""
    if weights:
        return {
            part.rank: str(part.weight_bits[place])
            for part, place in alike
            if part.weight_bits is not None
        }
    for names in (EXACT, SUMS):
        shared = _shared([part for part, _ in alike], names)
        values = {
            part.rank: repr([float(_column(part, name)[place]) for name in shared])
            for part, place in alike
        }
        if len(set(values.values())) > 1:
            return values
    return {}


def _is_one_moment(labels: Sequence[Mapping[str, object]]) -> bool:
    """Tell whether all gradients were read at the same point of a step that was taken."""
    first = labels[0].get(Label.POINT)
    return all(
        each.get(Label.POINT) == first and each.get(Label.TAKEN) is not False for each in labels
    )


def _shared(alike: list[RankRecord], names: Iterable[str]) -> list[str]:
    """Return the columns that can be compared: an absent count of NaN or Inf is zero."""
    return [
        name
        for name in names
        if all(name in part.columns for part in alike)
        or (name in NONFINITE_COUNTS and any(name in part.columns for part in alike))
    ]


def _column(part: RankRecord, name: str) -> FloatArray:
    if name in part.columns:
        return part.values[name]
    return np.zeros(len(part.layout.index))


def _largest(alike: list[RankRecord], names: Iterable[str]) -> FloatArray:
    """Return (own layers,) the largest relative difference in any of the columns."""
    largest = np.zeros(len(alike[0].layout.index))
    if len(alike) == 1:  # nearly always
        return largest
    for name in _shared(alike, names):
        columns = [_column(part, name) for part in alike]
        if not _are_same(columns):  # nearly always they are
            difference = _differences(np.stack(columns), nan_is_value=name in NORMS)
            largest = np.maximum(largest, difference)
    return largest


def _are_same(columns: list[FloatArray]) -> bool:
    first = columns[0].tobytes()
    return all(column.tobytes() == first for column in columns)


def _differences(columns: FloatArray, *, nan_is_value: bool) -> FloatArray:
    """Return (layers,) the relative differences between ranks of (ranks, layers) numbers."""
    missing = np.isnan(columns)
    # In other columns it says that nothing was measured.
    known = np.ones_like(missing) if nan_is_value else ~missing
    high = np.fmax.reduce(columns, axis=0)
    low = np.fmin.reduce(columns, axis=0)
    with np.errstate(invalid="ignore", over="ignore"):  # a norm below 0 may come from the wire
        relative = 1.0 - low / np.where(high > 0.0, high, 1.0)
    differs = (high > low) | (missing & known).any(axis=0)
    differs &= ~missing.all(axis=0)  # NaN everywhere is the same
    relative[(known & ~np.isfinite(columns)).any(axis=0)] = np.inf
    return np.where(differs, relative, 0.0)


def _digests_differ(digested: list[RankRecord]) -> BoolArray:
    digests = np.stack([part.weight_bits for part in digested if part.weight_bits is not None])
    differ: BoolArray = (digests != digests[0]).any(axis=0)
    return differ
