"""Records wait in a bounded buffer; the oldest are evicted, except that manifests stay readable."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwatch_wire import Kind
from gradwatch_wire.session.send_buffer import SendBuffer


def contents(buffer: SendBuffer) -> list[tuple[int, bytes]]:
    items = [buffer.get(seq) for seq in range(buffer.low, buffer.last + 1)]
    return [(item.seq, item.body) for item in items if item is not None]


def filled(max_bytes: int, *bodies: bytes) -> SendBuffer:
    """A buffer of STATS, and of manifests for bodies that begin with `M`."""
    buffer = SendBuffer(max_bytes)
    for body in bodies:
        buffer.append(Kind.MANIFEST if body.startswith(b"M") else Kind.STATS, 0, body)
    return buffer


def test_records_are_numbered_from_1_and_found_by_number() -> None:
    buffer = SendBuffer(100)
    assert (buffer.low, buffer.high, buffer.last, len(buffer), buffer.get(1)) == (1, 0, 0, 0, None)
    buffer.append(Kind.STATS, 77, b"a")
    buffer.append(Kind.EVENT, 78, b"bc")

    assert (buffer.low, buffer.last, len(buffer), buffer.size_bytes) == (1, 2, 2, 3)
    item = buffer.get(2)
    assert item is not None
    assert (item.seq, item.kind, item.time_ns, item.body) == (2, Kind.EVENT, 78, b"bc")
    assert buffer.get(0) is None
    assert buffer.get(3) is None


def test_what_is_acknowledged_is_released() -> None:
    buffer = filled(100, b"a", b"b", b"c")

    assert [buffer.release(acked) for acked in (0, 2, 2, 1)] == [0, 2, 0, 0]
    assert (contents(buffer), buffer.size_bytes) == ([(3, b"c")], 1)
    assert buffer.release(3) == 1
    assert (buffer.low, buffer.last, buffer.size_bytes) == (4, 3, 0)
    buffer.append(Kind.STATS, 0, b"d")
    assert contents(buffer) == [(4, b"d")]


def test_when_it_is_full_the_oldest_give_way() -> None:
    buffer = filled(6, b"aa", b"bb", b"cc")

    assert buffer.append(Kind.STATS, 0, b"d") == 1
    assert contents(buffer) == [(2, b"bb"), (3, b"cc"), (4, b"d")]
    assert buffer.append(Kind.STATS, 0, b"eeeee") == 2
    assert contents(buffer) == [(4, b"d"), (5, b"eeeee")]


def test_one_record_larger_than_the_buffer_is_kept_alone() -> None:
    buffer = filled(4, b"aa", b"bb")

    assert buffer.append(Kind.STATS, 0, b"ccccc") == 2
    assert contents(buffer) == [(3, b"ccccc")]


def test_a_manifest_stays_before_the_records_that_refer_to_it() -> None:
    buffer = filled(8, b"M1", b"aa", b"bb", b"cc")

    assert buffer.append(Kind.STATS, 0, b"dd") == 1
    assert contents(buffer) == [(1, b"M1"), (3, b"bb"), (4, b"cc"), (5, b"dd")]
    assert buffer.append(Kind.STATS, 0, b"eeee") == 2
    assert contents(buffer) == [(1, b"M1"), (5, b"dd"), (6, b"eeee")]


def test_manifests_keep_their_order() -> None:
    buffer = filled(12, b"M1", b"aa", b"M2", b"bb", b"M3", b"cc")

    assert buffer.append(Kind.STATS, 0, b"dddd") == 2
    assert contents(buffer) == [(1, b"M1"), (3, b"M2"), (5, b"M3"), (6, b"cc"), (7, b"dddd")]


def test_manifests_do_not_fill_the_buffer() -> None:
    buffer = filled(12, b"M1", b"M2", b"M3", b"M4", b"M5", b"M6")

    assert buffer.append(Kind.STATS, 0, b"a") == 3
    assert contents(buffer) == [(4, b"M4"), (5, b"M5"), (6, b"M6"), (7, b"a")]


def test_a_record_is_put_back_before_all_others() -> None:
    buffer = filled(100, b"M1", b"M2", b"c")
    first, second = buffer.get(1), buffer.get(2)
    assert first is not None
    assert second is not None
    buffer.release(2)

    assert [buffer.put_back(item) for item in (second, first, first, second)] == [
        *(True, True, False, False)
    ]
    assert contents(buffer) == [(1, b"M1"), (2, b"M2"), (3, b"c")]
    assert buffer.size_bytes == 5


def test_a_record_is_put_back_into_an_empty_buffer() -> None:
    buffer = filled(100, b"M", b"b")
    manifest = buffer.get(1)
    assert manifest is not None
    buffer.release(2)
    buffer.put_back(manifest)

    assert (buffer.low, buffer.last, contents(buffer)) == (1, 2, [(1, b"M")])


def test_numbers_are_given_out_to_what_will_never_be() -> None:
    buffer = filled(100, b"a")
    buffer.skip(2)
    buffer.append(Kind.STATS, 0, b"b")

    assert (buffer.low, buffer.last, contents(buffer)) == (1, 4, [(1, b"a"), (4, b"b")])
    buffer.skip(1)
    assert (buffer.high, buffer.last) == (4, 5)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    max_bytes=st.integers(1, 60),
    actions=st.lists(
        st.tuples(st.sampled_from("SMr"), st.integers(1, 40)), min_size=1, max_size=40
    ),
)
def test_numbers_stay_in_order_and_memory_bounded(
    max_bytes: int, actions: list[tuple[str, int]]
) -> None:
    buffer = SendBuffer(max_bytes)
    appended = evicted = released = 0
    for action, number in actions:
        if action == "r":
            released += buffer.release(number)
            continue
        kind = Kind.MANIFEST if action == "M" else Kind.STATS
        evicted += buffer.append(kind, 0, bytes(number))
        appended += 1
        assert buffer.size_bytes <= max(max_bytes, max_bytes // 2 + number)

        waiting = contents(buffer)
        assert len(waiting) == len(buffer)
        assert waiting[0][0] == buffer.low
        assert buffer.size_bytes == sum(len(body) for _, body in waiting)
    assert buffer.last == appended == len(buffer) + evicted + released
