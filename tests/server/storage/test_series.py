"""Curves in a store: the oldest go, and all others stay as they were written."""

from __future__ import annotations

import numpy as np
import pytest

from gradwatch_server.engine.recorded_attempt import encode_chunk
from gradwatch_server.series.chunk import Chunk
from gradwatch_server.series.encoding import encode_layers
from gradwatch_server.series.history import Wanted
from gradwatch_server.series.layers import KnownLayers
from gradwatch_server.storage.series_compactor import Compactor
from gradwatch_server.storage.series_store import SeriesStore, Track
from gradwatch_server.storage.sqlite.database import Database
from gradwatch_server.storage.sqlite.series import SQLiteSeries

RUN, ATTEMPT = "gpt", 1
ROWS, LAYERS = 16, 400
"""Of a chunk: the body of its table is read in parts."""


def chunk_of(number: int, epoch: int, count: int = ROWS) -> Chunk:
    random = np.random.default_rng(number)
    chunk = Chunk(number, epoch, ROWS, ("l2",), LAYERS)
    chunk.steps[:] = number * ROWS + np.arange(ROWS)
    chunk.times_ns[:] = chunk.steps * 1_000
    chunk.offsets[:] = chunk.steps * 3
    chunk.run[:], chunk.run_known[:] = random.random(chunk.run.shape), True
    chunk.values[:], chunk.present[:] = random.random(chunk.values.shape), True
    chunk.values[3, 0, 5] = np.nan
    chunk.count = count
    return chunk


def write(store: SeriesStore) -> None:
    """Write two epochs with a chunk that is not closed yet, and all wider buckets."""
    layers = KnownLayers(("a", "b"), (1, 2), {}, True, (), (), {})
    store.save(RUN, ATTEMPT, [], encode_layers(layers))
    store.save("other", 2, [encode_chunk(chunk_of(9, 0), is_closed=True)])
    for number in range(50):
        epoch = int(number >= 36)
        if number % 7 == 0:
            part = chunk_of(number, epoch, count=5)
            store.save(RUN, ATTEMPT, [encode_chunk(part, is_closed=False)])
        whole = chunk_of(number, epoch)
        store.save(RUN, ATTEMPT, [encode_chunk(whole, is_closed=number < 49)])
    compactor = Compactor(store)
    compactor.note(RUN, ATTEMPT)
    while compactor.step():
        pass


def numbers(store: SeriesStore, level: int) -> list[int]:
    return [own.number for own in store.after(RUN, ATTEMPT, level, -1, 99)]


def read_all(store: SeriesStore, run: str, attempt: int) -> list[bytes]:
    """Return the single steps of all layers."""
    wanted = Wanted(0, "l2", np.arange(LAYERS), 0, 9_999)
    with store.read(run, attempt, None, None) as (frames, _):
        return [piece.stats.tobytes() for piece in frames.pieces(wanted, 16)]


@pytest.mark.slow
def test_the_oldest_are_deleted_and_the_others_stay() -> None:
    db = Database(None)
    store = SQLiteSeries(db)
    write(store)
    fine, coarse = Track.FRAMES.levels[:2]
    before, of_other = numbers(store, fine), read_all(store, "other", 2)
    newest = store.newest(RUN, ATTEMPT, coarse)

    assert store.trim(RUN, ATTEMPT, fine, 9) > 0
    assert numbers(store, fine) == before[9:]
    assert store.drop(RUN, ATTEMPT, fine, 9) > 0
    assert numbers(store, fine) == before[18:]
    assert store.newest(RUN, ATTEMPT, coarse) == newest

    while store.remove(RUN, ATTEMPT, 20):
        pass
    assert [(size.run, size.attempt) for size in store.sizes()] == [("other", 2)]
    assert store.layers(RUN, ATTEMPT) == b""
    assert read_all(store, "other", 2) == of_other
    db.close()
