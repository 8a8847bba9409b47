"""Chunks of rows on their way into the store and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gradwatch_server.series.chunk import Chunk
from gradwatch_server.series.columns import RUN_TABLE
from gradwatch_server.series.encoding import (
    DamagedChunkError,
    decode_arrays,
    decode_blocks,
    encode_arrays,
    encode_rows,
)
from gradwatch_server.series.items import ITEM_TABLES
from gradwatch_server.storage.series_store import ChunkFacts, SavedSeriesChunk, Track
from gradwatch_wire.columns import L2, NONFINITE_COUNTS


def encode_chunk(chunk: Chunk, *, is_closed: bool, track: Track = Track.FRAMES) -> SavedSeriesChunk:
    """Return a chunk as it is written."""
    rows = slice(chunk.count)
    facts = ChunkFacts(
        level=track,
        number=chunk.number,
        epoch=chunk.epoch,
        first_step=int(chunk.steps[0]),
        last_step=int(chunk.steps[chunk.count - 1]),
        entries=chunk.count,
        is_closed=is_closed,
    )
    head = [chunk.steps[rows], chunk.times_ns[rows], chunk.skipped[rows], chunk.offsets[rows]]
    tables = {RUN_TABLE: encode_rows(chunk.rows(RUN_TABLE))}
    if chunk.num_layers and chunk.columns:
        columns = dict.fromkeys((*chunk.columns, *NONFINITE_COUNTS))
        tables |= {name: encode_rows(chunk.rows(name)) for name in columns}
    tables |= {name: encode_rows(chunk.rows(name)) for name in chunk.items}
    return SavedSeriesChunk(facts, encode_arrays(head), tables)


def decode_chunk(facts: ChunkFacts, head: bytes, tables: Mapping[str, bytes]) -> Chunk:
    """Return a chunk to which rows may be added.

    Raises:
        DamagedChunkError: If it is not what was written.
    """
    steps, times_ns, skipped, offsets = decode_arrays(head)
    fills = (np.nan, False)
    found = {name: decode_blocks(_reader(body), None, fills) for name, body in tables.items()}
    run, run_known = found.pop(RUN_TABLE)
    items = {name: found.pop(name) for name in ITEM_TABLES & found.keys()}
    count = facts.entries
    present = found[L2][1] if L2 in found else np.zeros((count, 0), dtype=np.bool_)
    lengths = {len(steps), *(len(own[0]) for own in items.values())}
    if lengths != {count} or any(own[0].shape != present.shape for own in found.values()):
        msg = f"{count} rows and {len(steps)} steps"
        raise DamagedChunkError(msg)
    made = Chunk(facts.number, facts.epoch, max(count, 1), tuple(found), present.shape[1])
    made.steps[:], made.times_ns[:] = steps, times_ns
    made.skipped[:], made.offsets[:] = skipped, offsets
    made.run[:], made.run_known[:] = run, run_known
    made.present[:] = present
    for place, (values, _) in enumerate(found.values()):
        made.values[:, place] = values
    for name, (values, was_known) in items.items():
        made.add_table(name, values.shape[1])
        made.items[name][0][:], made.items[name][1][:] = values, was_known
    made.count = count
    return made


def _reader(body: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: body[offset : offset + length]
