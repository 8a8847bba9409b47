"""Records wait in a bounded ring; the oldest give way, except that manifests stay readable."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gradwatch._transport.send_buffer import SendBuffer
from gradwatch_wire import Kind


def contents(ring: SendBuffer) -> list[tuple[int, bytes]]:
    """What waits: sequence numbers and bodies."""
    items = [ring.get(seq) for seq in range(ring.low, ring.last + 1)]
    return [(item.seq, item.body) for item in items if item is not None]


def filled(max_bytes: int, *bodies: bytes) -> SendBuffer:
    """A ring of STATS, and of manifests for bodies that begin with `M`."""
    ring = SendBuffer(max_bytes)
    for body in bodies:
        ring.append(Kind.MANIFEST if body.startswith(b"M") else Kind.STATS, 0, body)
    return ring


def test_records_are_numbered_from_1_and_found_by_number() -> None:
    """Others than those that wait are None."""
    ring = SendBuffer(100)
    assert (ring.low, ring.last, len(ring), ring.get(1)) == (1, 0, 0, None)
    ring.append(Kind.STATS, 77, b"a")
    ring.append(Kind.EVENT, 78, b"bc")

    assert (ring.low, ring.last, len(ring), ring.size_bytes) == (1, 2, 2, 3)
    item = ring.get(2)
    assert item is not None
    assert (item.seq, item.kind, item.time_ns, item.body) == (2, Kind.EVENT, 78, b"bc")
    assert ring.get(0) is None
    assert ring.get(3) is None


def test_what_is_acknowledged_is_released() -> None:
    """All up to the number, each once; numbers go on."""
    ring = filled(100, b"a", b"b", b"c")

    assert [ring.release(acked) for acked in (0, 2, 2, 1)] == [0, 2, 0, 0]
    assert (contents(ring), ring.size_bytes) == ([(3, b"c")], 1)
    assert ring.release(3) == 1
    assert (ring.low, ring.last, ring.size_bytes) == (4, 3, 0)
    ring.append(Kind.STATS, 0, b"d")
    assert contents(ring) == [(4, b"d")]


def test_when_it_is_full_the_oldest_give_way() -> None:
    """As many as are needed, and they are counted."""
    ring = filled(6, b"aa", b"bb", b"cc")

    assert ring.append(Kind.STATS, 0, b"d") == 1
    assert contents(ring) == [(2, b"bb"), (3, b"cc"), (4, b"d")]
    assert ring.append(Kind.STATS, 0, b"eeeee") == 2
    assert contents(ring) == [(4, b"d"), (5, b"eeeee")]


def test_one_record_larger_than_the_ring_is_kept_alone() -> None:
    """It is for the limit on records to refuse it."""
    ring = filled(4, b"aa", b"bb")

    assert ring.append(Kind.STATS, 0, b"ccccc") == 2
    assert contents(ring) == [(3, b"ccccc")]


def test_a_manifest_stays_before_the_records_that_refer_to_it() -> None:
    """Under its own number: what went leaves a hole, which nobody else's number hides."""
    ring = filled(8, b"M1", b"aa", b"bb", b"cc")

    assert ring.append(Kind.STATS, 0, b"dd") == 1
    assert contents(ring) == [(1, b"M1"), (3, b"bb"), (4, b"cc"), (5, b"dd")]
    assert ring.append(Kind.STATS, 0, b"eeee") == 2
    assert contents(ring) == [(1, b"M1"), (5, b"dd"), (6, b"eeee")]


def test_manifests_keep_their_order() -> None:
    """Those at the front and those between."""
    ring = filled(12, b"M1", b"aa", b"M2", b"bb", b"M3", b"cc")

    assert ring.append(Kind.STATS, 0, b"dddd") == 2
    assert contents(ring) == [(1, b"M1"), (3, b"M2"), (5, b"M3"), (6, b"cc"), (7, b"dddd")]


def test_manifests_do_not_fill_the_ring() -> None:
    """Of many, the oldest give way like any other record."""
    ring = filled(12, b"M1", b"M2", b"M3", b"M4", b"M5", b"M6")

    assert ring.append(Kind.STATS, 0, b"a") == 3
    assert contents(ring) == [(4, b"M4"), (5, b"M5"), (6, b"M6"), (7, b"a")]


def test_a_record_is_put_back_before_all_others() -> None:
    """Under its own number, once."""
    ring = filled(100, b"M1", b"M2", b"c")
    first, second = ring.get(1), ring.get(2)
    assert first is not None
    assert second is not None
    ring.release(2)

    assert [ring.put_back(item) for item in (second, first, first, second)] == [
        *(True, True, False, False)
    ]
    assert contents(ring) == [(1, b"M1"), (2, b"M2"), (3, b"c")]
    assert ring.size_bytes == 5


def test_a_record_is_put_back_into_an_empty_ring() -> None:
    """Everything was acknowledged by a log that was lost."""
    ring = filled(100, b"M", b"b")
    manifest = ring.get(1)
    assert manifest is not None
    ring.release(2)
    ring.put_back(manifest)

    assert (ring.low, ring.last, contents(ring)) == (1, 2, [(1, b"M")])


def test_numbers_are_given_out_to_what_will_never_be() -> None:
    """They count as lost: nothing waits under them."""
    ring = filled(100, b"a")
    ring.skip(2)
    ring.append(Kind.STATS, 0, b"b")

    assert (ring.low, ring.last, contents(ring)) == (1, 4, [(1, b"a"), (4, b"b")])


@settings(max_examples=200, deadline=None)
@given(
    max_bytes=st.integers(1, 60),
    actions=st.lists(
        st.tuples(st.sampled_from("SMr"), st.integers(1, 40)), min_size=1, max_size=40
    ),
)
def test_numbers_stay_in_order_and_memory_bounded(
    max_bytes: int, actions: list[tuple[str, int]]
) -> None:
    """Whatever is appended and released; what waited is released, evicted or still there."""
    ring = SendBuffer(max_bytes)
    appended = evicted = released = 0
    for action, number in actions:
        if action == "r":
            released += ring.release(number)
            continue
        kind = Kind.MANIFEST if action == "M" else Kind.STATS
        evicted += ring.append(kind, 0, bytes(number))
        appended += 1
        assert ring.size_bytes <= max(max_bytes, max_bytes // 2 + number)

        waiting = contents(ring)
        assert len(waiting) == len(ring)
        assert waiting[0][0] == ring.low
        assert ring.size_bytes == sum(len(body) for _, body in waiting)
    assert ring.last == appended == len(ring) + evicted + released
