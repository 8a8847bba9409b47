"""Garbage collection: all objects are looked at only once memory has grown."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from gradwatch_server.service import GROWN_BYTES, GarbageCollector

pytestmark = pytest.mark.slow


class Node:
    """Something that refers to itself: only garbage collection frees it."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def full_collections() -> Iterator[list[int]]:
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            seen.append(1)

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


def test_growing_looks_at_all_objects_only_when_memory_grew(full_collections: list[int]) -> None:
    """A million objects that stay are no reason; 64 MiB more are, once."""
    size = [200 << 20]
    collector = GarbageCollector(lambda: size[0])
    with collector.pausing_briefly():
        full_collections.clear()
        kept = [[number] for number in range(1_000_000)]
        collector.collect_if_due()
        assert full_collections == []

        gone = weakref.ref(Node())
        gc.collect(1)
        again = weakref.ref(old := Node())
        gc.collect(0)
        gc.collect(1)
        del old
        size[0] += GROWN_BYTES
        collector.collect_if_due()
        collector.collect_if_due()
        assert len(full_collections) == 1
        assert (gone(), again()) == (None, None)
    assert len(kept) == 1_000_000
    assert gc.get_freeze_count() == 0


def test_what_was_there_at_the_start_is_never_looked_at() -> None:
    before = gc.get_threshold()
    with GarbageCollector().pausing_briefly():
        assert gc.get_freeze_count() > 10_000
        assert len(gc.get_objects()) < 1_000
    assert gc.get_threshold() == before


def test_the_memory_of_a_process_is_that_of_now() -> None:
    subprocess.run([sys.executable, "-c", MEASURED], check=True)


MEASURED = """
from gradwatch_server.service import resident_bytes

before = resident_bytes()
held = bytearray(b"x") * (50 << 20)
assert resident_bytes() - before > 40 << 20
del held
assert resident_bytes() - before < 20 << 20
"""
