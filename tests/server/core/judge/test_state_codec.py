"""The codec of state: every array comes back bit for bit, in its own dtype and writable."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest

from gradwatch_server.core.arrays import BoolArray, Float32Array, FloatArray, IndexArray
from gradwatch_server.core.frames.layout import Layout, Shards
from gradwatch_server.core.state_codec import decode, encode


@dataclass(slots=True)
class Inner:
    """Part of a state."""

    last: deque[float] = field(default_factory=lambda: deque(maxlen=3))


@dataclass(slots=True)
class Whole:
    """A state with a field of each type."""

    wide: FloatArray
    narrow: Float32Array
    counts: IndexArray
    flags: BoolArray
    inner: Inner
    since: int | None = None


def whole() -> Whole:
    return Whole(
        np.array([[1.0, np.nan], [-np.inf, 1e-320]]),
        np.array([1.5, -np.inf], np.float32),
        np.array([3, -1]),
        np.array([True, False]),
        Inner(deque([1.0, 2.0, 3.0, 4.0], 3)),
    )


def test_a_state_comes_back_through_msgpack() -> None:
    made = whole()
    again = decode(encode(made), Whole)

    for name in ("wide", "narrow", "counts", "flags"):
        before, after = getattr(made, name), getattr(again, name)
        assert (after.dtype, after.tobytes()) == (before.dtype, before.tobytes())
        assert after.flags.writeable
    assert (again.inner.last, again.inner.last.maxlen) == (deque([2.0, 3.0, 4.0]), 3)
    assert again.since is None


def test_data_of_another_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="wide"):
        decode(encode(Inner()), Whole)


def test_a_changed_byte_is_seen() -> None:
    saved = bytearray(encode(whole()))
    saved[-1] ^= 1

    with pytest.raises(ValueError, match="checksum"):
        decode(bytes(saved), Whole)


def test_a_shared_object_is_saved_once_and_is_one_again() -> None:
    one = np.ones(1000, dtype=np.int64)
    layout = Layout(np.arange(1000), Shards(one, one, one, one > 1))
    both = decode(encode([layout, layout]), list[Layout])

    assert both[0] is both[1]
    assert both[0].index.tolist() == list(range(1000))
    assert len(encode([layout, layout])) < 1.01 * len(encode([layout]))
