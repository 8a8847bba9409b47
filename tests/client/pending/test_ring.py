"""Numbers say themselves that they have arrived: never a wrong one, whatever bits and order.

The device is another process that writes into the same memory while it is read.
"""

from __future__ import annotations

import math
import mmap
import random
import subprocess
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradwatch._pending.numbers import NumbersAtHand, Values
from gradwatch._pending.ring import ABSENT, Ring, RingNumbers, arrived
from tests.support import late_writer
from tests.support.late_writer import numbers_of
from tests.support.waiting import PATIENCE_S

SIZE = 512
ROUNDS = 10_000


def ring_of(size: int) -> tuple[Ring, memoryview]:
    memory = memoryview(array("Q", bytes(8 * size)))
    return Ring(memory), memory


def write(memory: memoryview, start: int, *numbers: float) -> None:
    memory[start : start + len(numbers)] = memoryview(array("d", numbers)).cast("B").cast("Q")


class Device:
    """Another process that writes into the memory of a ring."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(8 * SIZE))
        with path.open("r+b") as file:
            self.memory = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
        self._process = subprocess.Popen(
            [sys.executable, late_writer.__file__, str(path)], stdin=subprocess.PIPE, text=True
        )

    def copy(self, start: int, count: int, seed: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{start} {count} {seed}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE_S) == 0


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    made = Device(tmp_path / "memory")
    yield made
    made.close()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("given_up", [0.0, 0.3])
def test_a_reader_beside_the_writer_never_sees_a_wrong_number(
    device: Device, given_up: float
) -> None:
    ring, dice = Ring(device.memory), random.Random(0)
    waiting: deque[tuple[RingNumbers, int, int]] = deque()
    num_read = num_given_up = num_full = 0
    deadline = time.monotonic() + PATIENCE_S
    for seed in range(ROUNDS):
        count = dice.choice((1, 2, 7, 40, 100))
        while (found := ring.take(count)) is None:
            num_full += 1
            num_read += read_oldest(waiting)
            assert time.monotonic() < deadline, "nothing arrives any more"
        device.copy(found[0], count, seed)
        waiting.append((found[1], count, seed))
        del found
        if dice.random() < given_up:
            waiting.popleft()
            num_given_up += 1
        num_read += read_oldest(waiting)
    while waiting:
        num_read += read_oldest(waiting)

    assert num_full > 0
    assert num_read + num_given_up == ROUNDS


def read_oldest(waiting: deque[tuple[RingNumbers, int, int]]) -> bool:
    if not waiting or not waiting[0][0].ready():
        return False
    numbers, count, seed = waiting.popleft()
    assert array("d", numbers.read()).tobytes() == array("Q", numbers_of(seed, count)).tobytes()
    return True


def test_numbers_are_there_when_the_last_of_them_is() -> None:
    for late in range(5):
        ring, memory = ring_of(5)
        found = ring.take(5)
        assert found is not None
        numbers = [1.5, math.inf, 0.0, -0.0, 5e-324]
        for place in (place for place in range(5) if place != late):
            write(memory, place, numbers[place])
            assert not found[1].ready()
        write(memory, late, numbers[late])
        assert found[1].ready()
        assert list(map(str, found[1].read())) == list(map(str, numbers))


def test_the_pattern_across_two_numbers_is_none() -> None:
    pattern = ABSENT.to_bytes(8, sys.byteorder)
    for shift in range(1, 8):
        place = memoryview(bytearray(bytes(shift) + pattern + bytes(8 - shift))).cast("Q")
        assert arrived(place) == place.tobytes()
    for before in (bytes(8), bytes(4) + pattern + bytes(4)):  # and then one that is it
        place = memoryview(bytearray(before + pattern + bytes(8))).cast("Q")
        assert arrived(place) is None


def test_a_place_is_used_again_only_once_it_was_read() -> None:
    ring, memory = ring_of(10)
    places = [ring.take(4), ring.take(4)]
    assert [place[0] for place in places if place] == [0, 4]
    assert ring.take(4) is None
    assert ring.take(2) is not None
    for start in (4, 0):  # the second arrives first
        write(memory, start, 1.0, 2.0, 3.0, 4.0)
        place = places[start // 4]
        assert place is not None
        assert place[1].ready()
        assert place[1].read() == [1.0, 2.0, 3.0, 4.0]
        assert (ring.take(3) is not None) == (start == 0)


def test_what_was_given_up_is_used_again_only_once_it_has_arrived() -> None:
    """A copy that comes late would fall on other numbers."""
    ring, memory = ring_of(4)
    found: Any = ring.take(4)
    del found
    assert ring.take(1) is None
    write(memory, 0, 1.0, 2.0, 3.0)
    assert ring.take(1) is None
    write(memory, 3, 4.0)
    assert ring.take(4) is not None


def test_numbers_that_were_read_stay_when_their_place_is_used_again() -> None:
    ring, memory = ring_of(2)
    first = ring.take(2)
    assert first is not None
    write(memory, 0, 1.0, 2.0)
    assert first[1].ready()
    assert ring.take(2) is not None
    write(memory, 0, 3.0)
    assert first[1].read() == [1.0, 2.0]


def test_more_than_the_ring_has_is_refused() -> None:
    ring, _ = ring_of(4)
    assert len(ring) == 4
    assert ring.take(5) is None


def test_values_of_several_devices_find_their_places() -> None:
    first, second = (NumbersAtHand(array("d", each).tobytes()) for each in ([9, 2, 3, 1], [4]))
    values = Values([1, 1, 2], [({0: 3, 2: 1}, first), ({1: 0}, second)])
    assert values.ready()
    assert not values.is_lost
    assert values.read() == [[1.0], [4.0], [2.0, 3.0]]

    lost = Values([1, 1, 2], [({0: 3, 2: 1}, first), ({1: 0}, None)])
    assert lost.is_lost
