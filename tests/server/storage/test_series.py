"""Curves: what one store says of them, another says too, whatever was written and deleted."""

from __future__ import annotations

from dataclasses import astuple, is_dataclass
from typing import Any

import numpy as np
import pytest

from gradwatch_server.series.chunk import Chunk
from gradwatch_server.series.columns import RUN_TABLE
from gradwatch_server.series.encoding import encode_layers
from gradwatch_server.series.history import StoredSeries, Wanted
from gradwatch_server.series.layers import KnownLayers
from gradwatch_server.storage.series_chunks import encode_chunk
from gradwatch_server.storage.series_compactor import Compactor
from gradwatch_server.storage.series_store import SeriesStore, Track
from gradwatch_server.storage.sqlite.database import Database
from gradwatch_server.storage.sqlite.series import SQLiteSeries
from tests.support.ledger_database import LedgerDatabase

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


def plain(found: Any) -> Any:
    """Return what can be compared, NaN included."""
    if is_dataclass(found) and not isinstance(found, type):
        return plain(astuple(found))
    if isinstance(found, np.ndarray):
        return found.dtype, found.shape, found.tobytes()
    return [plain(own) for own in found] if isinstance(found, list | tuple) else found


def facts(store: SeriesStore) -> Any:
    """Return all that the writer can ask for."""
    found: list[Any] = [store.sizes(), store.layers(RUN, ATTEMPT), store.layers(RUN, 7)]
    for level in Track.FRAMES.levels:
        chunks = store.after(RUN, ATTEMPT, level, -1, 99)
        found += [store.newest(RUN, ATTEMPT, level), chunks[:3], len(chunks)]
        found.append(store.after(RUN, ATTEMPT, level, 4, 2))
        for own in chunks[:2]:
            at = RUN, ATTEMPT, level, own.number
            found += [store.head(*at), sorted(store.tables(*at))]
            for table in ("l2", RUN_TABLE, "none"):
                with store.body(*at, table) as read:
                    places = (0, 8), (4_090, 20), (30_000, 5_000), (1 << 30, 4)
                    found.append(read and [read(*place) for place in places])
    return found


def curves(series: StoredSeries) -> Any:
    """Return all that a reader can ask for."""
    found: list[Any] = [series.spans(), plain(series.layers())]
    for epoch in (0, 1, 2):
        found += [series.newest(epoch, rows) for rows in (1, 40, 9_999)]
        found += [series.finest(epoch, first, first + 50) for first in (0, 300, 700)]
        found += [series.offset(epoch, step) for step in (0, 333, 9_999)]
        for table, items in (("l2", [0, 5, 399]), (RUN_TABLE, [1]), ("none", [0])):
            for first, last in ((0, 9_999), (70, 70), (500, 620)):
                wanted = Wanted(epoch, table, np.array(items), first, last)
                found += [plain(series.row(wanted)), plain(list(series.rows(wanted)))]
                for width in (1, 16, 256):
                    found.append(plain(list(series.pieces(wanted, width))))
    return found


def all_of(store: SeriesStore) -> Any:
    found = [facts(store)]
    for before in (None, 40, 0):
        with store.read(RUN, ATTEMPT, before, before) as (frames, gains):
            found += [curves(frames), gains.spans()]
    return found


@pytest.mark.slow
def test_curves_are_the_same_in_the_ledger_as_in_the_file(ledger_database: LedgerDatabase) -> None:
    """Also when the oldest are trimmed, then dropped, then all of it is removed."""
    db = Database(None)
    file, own = SQLiteSeries(db), ledger_database.ledger.take(0, 1).series
    both: tuple[SeriesStore, SeriesStore] = (file, own)
    for store in both:
        write(store)
    assert len(own.sizes()) == 2
    assert own.used_bytes() == sum(size.num_bytes for size in own.sizes())
    assert all_of(file) == all_of(own)

    for delete in ("trim", "drop"):
        gone = [getattr(store, delete)(RUN, ATTEMPT, 0, 9) for store in both]
        assert gone[0] == gone[1] > 0
        assert all_of(file) == all_of(own)
    assert own.used_bytes() == sum(size.num_bytes for size in own.sizes())

    rounds = [[store.remove(RUN, ATTEMPT, 20) for _ in range(5)] for store in both]
    assert rounds[0] == rounds[1]
    assert not rounds[0][-1]
    assert all_of(file) == all_of(own)
    db.close()
