"""Where the records of this process are supplied from: the send buffer, or what it overflows to."""

from __future__ import annotations

from gradwatch_wire import Event, Welcome
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.send_buffer import BufferedRecord
from tests.support.records import manifest_of


class Overflow:
    """Keeps all it is given from a number on, and notes what it is asked."""

    def __init__(self, first: int = 1) -> None:
        self.items: list[BufferedRecord] = []
        self.asked: list[int] = []
        self._first = first

    def add(self, item: BufferedRecord) -> None:
        if item.seq >= self._first:
            self.items.append(item)

    def find(self, seq: int) -> BufferedRecord | None:
        self.asked.append(seq)
        return next((item for item in self.items if item.seq >= seq), None)

    def release(self, acked: int) -> None:
        self.items = [item for item in self.items if item.seq > acked]


def filled(overflow: Overflow | None, count: int) -> Outbox:
    outbox = Outbox(900, overflow)
    for step in range(count):
        assert outbox.append(Event(name="x" * 400, step=step), 7)
    return outbox


def number(item: BufferedRecord | None) -> int | None:
    return None if item is None else item.seq


def test_what_gave_way_in_the_buffer_comes_from_the_overflow() -> None:
    outbox = filled(Overflow(), 6)

    assert [number(outbox.get(seq)) for seq in range(8)] == [None, 1, 2, 3, 4, 5, 6, None]
    assert (outbox.pending, outbox.counters["evicted"]) == (2, 4)


def test_without_overflow_it_is_gone() -> None:
    """The first from there on is the oldest that the buffer has."""
    outbox = filled(None, 6)

    assert outbox.get(1) is None
    assert number(outbox.first_from(1)) == 5


def test_the_first_that_is_left_may_be_in_either_place() -> None:
    """The overflow may have lost the oldest ones, too."""
    assert number(filled(Overflow(), 6).first_from(1)) == 1
    assert number(filled(Overflow(first=3), 6).first_from(1)) == 3
    assert number(filled(Overflow(first=99), 6).first_from(1)) == 5


def test_the_overflow_is_not_asked_for_what_it_cannot_have() -> None:
    overflow = Overflow()
    outbox = filled(overflow, 6)
    assert [number(outbox.get(seq)) for seq in (5, 6, 7)] == [5, 6, None]
    outbox.release(6)
    outbox.skip(3)

    assert outbox.first_from(7) is None
    assert overflow.asked == []


def test_a_log_that_lost_its_data_again_and_again_is_told_the_manifests_each_time() -> None:
    outbox = Outbox(1 << 20)
    for number in (1, 2, 1):  # as when a manifest is declared anew
        outbox.append(manifest_of(["a"], manifest_id=number), 7)
        outbox.append(Event(name="x", step=0), 7)
    outbox.append(Event(name="x", step=0), 7)
    assert outbox.release(6) == 6

    for acked, waiting in ((0, [3, 5, 7]), (0, [3, 5, 7]), (4, [5, 7]), (0, [3, 5, 7])):
        assert outbox.resume(Welcome(boot_id=b"b" * 16, acked=acked)) == acked
        assert [seq for seq in range(8) if outbox.get(seq)] == waiting
    outbox.release(3)
    outbox.resume(Welcome(boot_id=b"b" * 16, acked=0))
    assert [seq for seq in range(8) if outbox.get(seq)] == [3, 5, 7]


def test_more_is_never_acknowledged_than_there_is() -> None:
    outbox = filled(None, 2)
    assert outbox.release(1 << 40) == 2
    assert outbox.resume(Welcome(boot_id=b"b" * 16, acked=1 << 40)) == 2

    assert outbox.counters["acked"] == 2
