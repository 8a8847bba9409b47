"""Buckets of random curves: no value is hidden, no count is lost, however they are made."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradwatch_server.curves.buckets import Buckets, width_for
from gradwatch_server.curves.encoding import (
    DamagedBlockError,
    decode_buckets,
    decode_head,
    decode_rows,
    encode_block,
    narrowed,
)
from gradwatch_server.curves.rows import Rows

VALUES = st.one_of(
    st.floats(),
    st.sampled_from([0.0, math.nan, math.inf, -math.inf, 1e308, 1.7e308, 5e-324, 1e-40]),
    st.none(),
)


@st.composite
def rows(draw: Any, items: int = 3) -> Rows:
    """Rows at steps that rise, some skipped, with values of every kind, and some unknown."""
    gaps = draw(st.lists(st.integers(1, 40), min_size=1, max_size=60))
    steps = np.cumsum(gaps) - 1
    cells = draw(
        st.lists(
            st.lists(VALUES, min_size=items, max_size=items), min_size=len(gaps), max_size=len(gaps)
        )
    )
    skipped = draw(st.lists(st.booleans(), min_size=len(gaps), max_size=len(gaps)))
    values = np.array([[math.nan if own is None else own for own in row] for row in cells])
    known = np.array([[own is not None for own in row] for row in cells])
    return Rows(steps.astype(np.int64), steps * 10, np.array(skipped), values, known)


WIDTHS = st.sampled_from([1, 2, 4, 16, 64, 256])


def check(found: Buckets, own: Rows) -> None:
    """Hold buckets to what they were made of."""
    low, high, mean, last = found.stats
    n, nan, inf, zero, skipped = found.counts
    assert (found.finite >= 0).all()
    assert found.counts.sum(axis=1)[0].tolist() == own.known.sum(axis=0).tolist()
    for place, number in enumerate(found.numbers.tolist()):
        inside = (own.steps // found.width) == number
        assert inside.any()
        assert found.times_ns[place] == own.times_ns[inside][-1]
        for item in range(own.values.shape[1]):
            known = own.known[inside, item]
            values = own.values[inside, item][known]
            skips = own.skipped[inside][known]
            finite = values[np.isfinite(values)]
            bad = ~np.isfinite(values)
            assert n[place, item] == len(values)
            assert nan[place, item] == (np.isnan(values) & ~skips).sum()
            assert inf[place, item] == (np.isinf(values) & ~skips).sum()
            assert skipped[place, item] == (bad & skips).sum()
            assert zero[place, item] == (finite == 0.0).sum()
            cell = low[place, item], mean[place, item], high[place, item], last[place, item]
            if not len(finite):
                assert np.isnan(cell).all()
                continue
            told = finite.min(), finite.max(), finite[-1]
            np.testing.assert_allclose((cell[0], cell[2], cell[3]), told, rtol=1e-7)
            assert cell[0] <= cell[1] <= cell[2]


@pytest.mark.slow
@given(rows(), WIDTHS)
def test_every_value_lies_in_its_bucket_and_every_count_adds_up(own: Rows, width: int) -> None:
    """Minimum, maximum and last are values that there were, the mean lies between them."""
    check(Buckets.of(own, width), own)


@pytest.mark.slow
@given(rows(), WIDTHS, WIDTHS, st.integers(0, 60))
def test_buckets_of_buckets_are_the_same(own: Rows, one: int, other: int, cut: int) -> None:
    small, large = sorted((one, other))
    cut = min(cut, len(own.steps))
    pieces = []
    for part in (slice(cut), slice(cut, None)):
        rest = Rows(
            own.steps[part],
            own.times_ns[part],
            own.skipped[part],
            own.values[part],
            own.known[part],
        )
        if len(rest.steps):
            pieces.append(stored(Buckets.of(rest, small)))
    check(Buckets.joined(pieces, large), own)


def stored(own: Buckets) -> Buckets:
    """Return what comes back from the bytes that are written of buckets."""
    stats = narrowed(own.stats)
    head, body = encode_block([own.numbers, own.times_ns], [("l2", [*stats, *own.counts])])
    found = decode_buckets(decode_head(head), own.width, "l2", reader(body))
    np.testing.assert_array_equal(found.stats, stats)
    np.testing.assert_array_equal(found.counts, own.counts)
    return found


def reader(body: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: body[offset : offset + length]


def encode(own: Rows) -> tuple[bytes, bytes]:
    head = [own.steps, own.times_ns, own.skipped, own.steps]
    return encode_block(head, [(name, [own.values, own.known]) for name in ("linf", "l2")])


@pytest.mark.slow
@given(rows(items=40))
def test_rows_come_back_as_they_were(own: Rows) -> None:
    encoded, body = encode(own)
    head, read = decode_head(encoded), reader(body)
    whole = decode_rows(head, "l2", read)
    np.testing.assert_array_equal(whole.values, own.values)
    assert (whole.known == own.known).all()
    assert (whole.steps == own.steps).all()
    some = decode_rows(head, "l2", read, np.array([33, 2, 77]))
    np.testing.assert_array_equal(some.values[:, :2], own.values[:, [33, 2]])
    assert not some.known[:, 2].any()
    assert not decode_rows(head, "l1", read, np.array([1])).known.any()


@given(rows(items=40), st.integers(0, 1 << 20), st.integers(1, 255))
def test_a_flipped_bit_is_found_or_says_nothing(own: Rows, place: int, flipped: int) -> None:
    encoded, body = encode(own)
    assume(body)
    damaged = bytearray(body)
    damaged[place % len(body)] ^= flipped
    head = decode_head(encoded)
    table = "l2" if place % len(body) >= head.tables["l2"].begin else "linf"
    with contextlib.suppress(DamagedBlockError):  # else the bit was one that says nothing
        found = decode_rows(head, table, reader(bytes(damaged)))
        np.testing.assert_array_equal(found.values, own.values)
        assert (found.known == own.known).all()
    damaged = bytearray(encoded)
    damaged[place % len(encoded)] ^= flipped
    with pytest.raises(DamagedBlockError):
        decode_head(bytes(damaged))


@given(rows(items=40))
def test_a_norm_in_float32_is_still_what_it_was(own: Rows) -> None:
    """A finite norm stays finite, one above zero above zero, a count the same (row C3)."""
    found = narrowed(own.values).astype(np.float64)

    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(own.values))
    np.testing.assert_array_equal(found == 0.0, own.values == 0.0)
    np.testing.assert_allclose(found, own.values, rtol=6e-8)
    counts = np.array([0.0, 16_777_217.0, math.nan, 2.0**53 - 1])
    np.testing.assert_array_equal(narrowed(counts), counts)
    assert narrowed(np.array([0.1, 3.0])).dtype == np.float32


def test_one_item_is_read_with_few_others() -> None:
    values = np.random.default_rng(7).random((64, 5_000))
    steps, flags = np.arange(64), np.ones_like(values, np.bool_)
    encoded, body = encode(Rows(steps, steps, np.zeros(64, np.bool_), values, flags))
    reads: list[int] = []

    def count(offset: int, length: int) -> bytes:
        reads.append(length)
        return body[offset : offset + length]

    found = decode_rows(decode_head(encoded), "l2", count, np.array([500]))

    assert found.values[:, 0].tolist() == values[:, 500].tolist()
    assert found.known.all()
    assert sum(reads) < len(body) // 60
    assert len(encoded) < 2_000


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 40), st.integers(1, 4_096))
def test_a_width_is_the_smallest_that_fits(first: int, length: int, points: int) -> None:
    """A power of two, counted from step 0."""
    last = first + length
    width = width_for(first, last, points)

    assert width & (width - 1) == 0
    assert last // width - first // width + 1 <= points
    half = width // 2
    assert width == 1 or last // half - first // half + 1 > points


def test_buckets_without_gaps() -> None:
    steps = np.array([3, 9], dtype=np.int64)
    own = Rows(
        steps, steps, np.zeros(2, np.bool_), np.array([[1.0], [2.0]]), np.ones((2, 1), np.bool_)
    )

    found = Buckets.of(own, 2).spread(0, 5)

    assert found.counts[0, :, 0].tolist() == [0, 1, 0, 0, 1, 0]
    assert found.times_ns.tolist() == [0, 3, 3, 3, 9, 9]
    assert np.isnan(found.stats[:, [0, 2, 3, 5]]).all()


def test_of_buckets_without_gaps_those_asked_for_are_given() -> None:
    steps = np.arange(8, dtype=np.int64)
    values = steps[:, None].astype(np.float64)
    skipped = np.zeros(8, np.bool_)
    own = Buckets.of(Rows(steps, steps, skipped, values, np.ones((8, 1), np.bool_)), 1)

    found = own.spread(2, 4)

    assert found.numbers.tolist() == [2, 3, 4]
    assert found.stats[:, :, 0].tolist() == [[2.0, 3.0, 4.0]] * 4
    assert found.counts[0, :, 0].tolist() == [1, 1, 1]
