"""Curves in a store: the oldest go, and all others stay as they were written."""

from __future__ import annotations

import numpy as np

from gradwatch_server.core.state_codec import encode
from gradwatch_server.curves.facts import BlockFacts, SavedBlock, Track
from gradwatch_server.curves.layers import KnownLayers
from gradwatch_server.storage.curves import CurveStore
from gradwatch_server.storage.store import Store

RUN, ATTEMPT = "gpt", 1
ROWS = 16
FINE, COARSE = Track.FRAMES.levels[:2]


def block_of(number: int, epoch: int, *, is_closed: bool = True) -> SavedBlock:
    body = np.random.default_rng(number).bytes(20_000 if is_closed else 5_000)
    first = number * ROWS
    facts = BlockFacts(FINE, number, epoch, first, first + ROWS - 1, ROWS, is_closed)
    return SavedBlock(facts, b"head %d" % number, body)


def write(store: CurveStore) -> None:
    """Write two epochs of blocks, some of them twice, and a wide block of each 16."""
    layers = KnownLayers(("a", "b"), (1, 2), {}, True, (), (), {})
    store.save(RUN, ATTEMPT, [], encode(layers))
    store.save("other", 2, [block_of(9, 0)])
    for number in range(50):
        epoch = int(number >= 36)
        if number % 7 == 0:
            store.save(RUN, ATTEMPT, [block_of(number, epoch, is_closed=False)])
        store.save(RUN, ATTEMPT, [block_of(number, epoch, is_closed=number < 49)])
    for number, (upto, epoch) in enumerate(((15, 0), (31, 0))):
        first = number * 256
        wide = BlockFacts(COARSE, number, epoch, first, first + 255, 16, upto=upto)
        store.save(RUN, ATTEMPT, [SavedBlock(wide, b"head", b"body")])


def numbers(store: CurveStore, level: int) -> list[int]:
    stored = store.stored(RUN, ATTEMPT)
    return [own.number for epoch in (0, 1) for own in stored.after(level, epoch, -1, 99)]


def read_all(store: CurveStore, run: str, attempt: int) -> list[bytes]:
    with store.read(run, attempt) as stored:
        return [block.read(0, 99_999) for block in stored.blocks(FINE, 0, 0, -1, 99)]


def test_what_is_written_is_found(store: Store) -> None:
    write(store.curves)
    with store.curves.read(RUN, ATTEMPT) as stored:
        newest, closed = stored.newest(FINE), stored.newest(FINE, is_closed=True)
        assert newest is not None
        assert closed is not None
        assert (newest.number, newest.is_closed, closed.number) == (49, False, 48)
        assert stored.epochs(FINE, 9) == [1, 0]
        assert stored.ends(FINE, 1) == (36 * ROWS, 50 * ROWS - 1)
        assert stored.ends(FINE, 2) is None
        assert stored.stood_for(COARSE, 0, 1 << 40) == (31, 511)
        assert stored.stood_for(COARSE, 1, 1 << 40) == (-1, -1)
        assert [n for n, _ in stored.heads(FINE, 0, 3)] == [ROWS] * 3
        wanted = [block.facts.number for block in stored.blocks(FINE, 0, 5 * ROWS + 3, -1, 8)]
        assert wanted == [5, 6, 7, 8]
        found = stored.block(FINE, 7)
        assert found is not None
        assert found.read(10, 20) == block_of(7, 0).body[10:30]
        assert found.read(19_990, 99) == block_of(7, 0).body[-10:]


def test_the_oldest_are_deleted_and_the_others_stay(store: Store) -> None:
    own = store.curves
    write(own)
    before, of_other = numbers(own, FINE), read_all(own, "other", 2)
    blocks = [block_of(number, 0, is_closed=number < 49) for number in range(50)]
    num_bytes = sum(len(block.head) + len(block.body) for block in blocks) + 2 * 8
    assert [size.num_bytes for size in own.sizes()] == [num_bytes, 20_006]

    assert own.trim(RUN, ATTEMPT, FINE, 9) == 9 * 20_006
    assert numbers(own, FINE) == before[9:]
    assert own.trim(RUN, ATTEMPT, FINE, 99) > 0
    assert numbers(own, FINE) == before[32:]
    assert own.trim(RUN, ATTEMPT, FINE, 99) == 0
    assert own.drop(RUN, ATTEMPT, FINE, 9) > 0
    assert numbers(own, FINE) == before[41:]
    assert own.drop(RUN, ATTEMPT, FINE, 99) > 0
    assert numbers(own, FINE) == [49]
    assert numbers(own, COARSE) == [0, 1]

    while own.remove(RUN, ATTEMPT, 20):
        pass
    assert [(size.run, size.attempt) for size in own.sizes()] == [("other", 2)]
    assert own.sizes(RUN) == []
    assert own.stored(RUN, ATTEMPT).layers() == b""
    assert read_all(own, "other", 2) == of_other
