"""Between the two threads: in order, bounded, and what is dropped is counted in its place."""

from __future__ import annotations

import pytest

from gradwatch._transport import sender
from gradwatch._transport.sender import CollectionQueue
from gradwatch_wire import Column, Manifest, Record


class Collected:
    """Something whose numbers arrive when the test says so."""

    def __init__(self, step: int, *manifests: Manifest) -> None:
        self.step = step
        self.time_ns = 0
        self.manifests = list(manifests)
        self.arrived = True
        self.is_lost = False

    def ready(self) -> bool:
        return self.arrived

    def records(self) -> list[Record]:
        return []


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> CollectionQueue:
    monkeypatch.setattr(sender, "MAX_COLLECTIONS", 3)
    return CollectionQueue()


def manifest(number: int) -> Manifest:
    numel = Column.pack("<u8", [1])
    return Manifest(manifest_id=number, names=("layer",), numel=numel, dtypes=("float32",))


def taken(queue: CollectionQueue) -> list[tuple[int, int]]:
    found = []
    while (item := queue.take()) is not None:
        found.append((item[0], item[1].step))
    return found


def test_collections_are_taken_in_order_once_their_numbers_are_there(
    queue: CollectionQueue,
) -> None:
    late = Collected(1)
    late.arrived = False
    assert all(queue.put(each) for each in (Collected(0), late, Collected(2)))
    assert taken(queue) == [(0, 0)]
    assert len(queue) == 2
    late.arrived = True

    assert taken(queue) == [(0, 1), (0, 2)]
    assert queue.take() is None


def test_when_it_is_full_the_oldest_is_dropped_and_counted_in_its_place(
    queue: CollectionQueue,
) -> None:
    assert [queue.put(Collected(step)) for step in range(5)] == [True, True, True, False, False]
    assert taken(queue) == [(2, 2), (0, 3), (0, 4)]
    queue.put(Collected(5))

    assert taken(queue) == [(0, 5)]
    assert queue.num_dropped == 2


def test_manifests_of_what_is_dropped_go_with_the_next_one(queue: CollectionQueue) -> None:
    for step in range(5):
        queue.put(Collected(step, manifest(2 * step), manifest(2 * step + 1)))
    found = []
    while (item := queue.take()) is not None:
        found.append([each.manifest_id for each in item[1].manifests])

    assert found == [[0, 1, 2, 3, 4, 5], [6, 7], [8, 9]]


def test_at_the_end_what_waits_is_dropped_with_what_was_before(queue: CollectionQueue) -> None:
    for step in range(4):
        queue.put(Collected(step))

    assert queue.drop_all() == 4
    assert (len(queue), queue.num_dropped, queue.drop_all()) == (0, 4, 0)
