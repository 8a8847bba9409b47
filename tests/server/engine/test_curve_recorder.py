"""The kept history: exact over restarts, made of wider and wider buckets, bounded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.core.entries import Forgotten
from gradwatch_server.core.frames.assembler import StepRecords
from gradwatch_server.core.frames.closed_frame import ClosedFrame
from gradwatch_server.core.frames.frame import RankRecord, RecordColumns
from gradwatch_server.core.frames.gains import GainFrame
from gradwatch_server.core.frames.layers import Layers
from gradwatch_server.core.frames.layout import Layout
from gradwatch_server.core.frames.merging import merge
from gradwatch_server.core.frames.step_numbers import StepNumbers
from gradwatch_server.curves.buckets import Buckets
from gradwatch_server.curves.columns import RUN_COLUMNS, RUN_TABLE
from gradwatch_server.curves.encoding import decode_head
from gradwatch_server.curves.facts import SeriesQuery
from gradwatch_server.curves.items import ItemKind, table_of
from gradwatch_server.engine import curve_recorder
from gradwatch_server.engine.curve_recorder import CurveRecorder
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_wire import Column
from tests.support.engine import Start, attached
from tests.support.records import manifest_of

pytestmark = pytest.mark.slow

LAYERS = ("a", "b", "c")
LOSS = RUN_COLUMNS.index("loss")


def norm_of(step: int) -> float:
    """Return a norm, as float32, that is now and then none, or zero."""
    if step % 97 == 13:
        return math.nan
    if step % 101 == 17:
        return math.inf
    return 0.0 if step % 53 == 5 else float(np.float32(1.0 + math.sin(step) ** 2))


class Feed:
    """A run whose frames are recorded into one store, by one process after another."""

    def __init__(self, directory: Path, max_bytes: int = 1 << 30) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self.layers = Layers()
        self.layers.declare(manifest_of(LAYERS))
        self.usual = np.full(len(LAYERS), 2.0)
        self.spread = np.full(len(LAYERS), 1.5)
        self.start()

    def start(self) -> None:
        self.store = SQLiteStore.open(self.directory, Clock())
        self.recorder = CurveRecorder(self.store.curves, self.max_bytes, Clock())
        self.recorder.begin()
        self.epoch, self.last = 0, -1

    def commit(self) -> None:
        """Write what the last entry completed, as the engine does."""
        with self.store.transaction():
            self.recorder.write()
        self.recorder.committed()

    def save(self) -> None:
        """Write all rows, as before the state of the run is saved."""
        self.recorder.save_open(["r"])
        self.commit()

    def steps(self, first: int, last: int, *, every: int = 1) -> None:
        for step in range(first, last, every):
            self.epoch += step <= self.last
            self.last = step
            columns = {"l2": Column.pack("<f8", [norm_of(step), 2.0, float(step)])}
            scalars = {"loss": float(step)}
            part = RankRecord(0, self.layout, True, RecordColumns(0, columns), scalars, {})
            gathered = StepRecords(step, -1, step, (part,), self.epoch)
            frame = merge(gathered, len(LAYERS), 1)
            closed = ClosedFrame(
                frame, self.epoch, 1.0, False, None, self.layers, self.usual, self.spread
            )
            self.recorder.add("r", 1, closed)
            self.commit()

    def sparse_steps(self, first: int, last: int, every: int) -> None:
        """Record a frame each so many steps; the losses of those between come with the next."""
        for step in range(first, last, every):
            columns = {"l2": Column.pack("<f8", [1.0, 2.0, 3.0])}
            between = range(max(step - every, first) + (step > first), step)
            history = StepNumbers.read(
                {
                    "step": Column.pack("<u8", between),
                    "loss": Column.pack("<f8", map(norm_of, between)),
                },
                step,
            )
            scalars = {"loss": norm_of(step)}
            record = RecordColumns(0, columns)
            part = RankRecord(0, self.layout, True, record, scalars, {}, history=history)
            frame = merge(StepRecords(step, -1, 1_000 * step, (part,), 0), len(LAYERS), 1)
            after_ns = 1_000 * (step - every) if step > first else None
            closed = ClosedFrame(
                frame, 0, 1.0, False, None, self.layers, self.usual, self.spread, after_ns
            )
            self.recorder.add("r", 1, closed)
            self.commit()

    def read_run(self, width: int, first: int = 0, last: int = 1 << 40) -> Buckets:
        """Return buckets of the loss, of all steps."""
        with self.recorder.history("r", 1) as history:
            wanted = SeriesQuery(0, RUN_TABLE, np.array([LOSS]), first, last)
            return history.run_buckets(wanted, width)

    def gains(self, first: int, last: int, every: int = 1) -> None:
        """Record gains whose blocks change on the way; they come at steps of their own."""
        for step in range(first, last, every):
            blocks = ("h.0", "h.1") if step < 700 else ("h.1", "h.0", "h.2")
            norms = (float(step), *[2.0] * (len(blocks) - 1))
            known = (math.inf if step == 650 else step / 2.0, *[1.0] * (len(blocks) - 2))
            found = GainFrame(step, step, (0,), "l2", blocks, norms, norms, norms, known)
            self.recorder.add_gains("r", 1, found, self.epoch)
            self.commit()

    @property
    def layout(self) -> Layout:
        found = self.layers.declare(manifest_of(LAYERS))
        assert found is not None
        return found

    def settle(self) -> None:
        for _ in range(3_000):
            self.recorder._rest_until_ns = 0
            self.recorder.run_slice(1)
            if not self.recorder._gone:
                return

    def kill(self) -> None:
        """Lose what is in memory, and what was not committed."""
        self.store.close()

    def read_gains(self, width: int, column: str = "gain") -> Buckets:
        table = table_of(ItemKind.BLOCK, column)
        with self.recorder.history("r", 1) as history:
            assert history.layers.items[ItemKind.BLOCK] == ("h.0", "h.1", "h.2")
            wanted = SeriesQuery(0, table, np.arange(3), 0, 1 << 40)
            return history.of_table(table).buckets(wanted, width)

    def read(
        self, width: int, first: int = 0, last: int = 1 << 40, table: str = "l2", epoch: int = 0
    ) -> Buckets:
        items = np.array([LOSS]) if table == RUN_TABLE else np.arange(len(LAYERS))
        with self.recorder.history("r", 1) as history:
            return history.buckets(SeriesQuery(epoch, table, items, first, last), width)


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    made = Feed(tmp_path / "data")
    yield made
    made.store.close()


def check(found: Buckets, width: int, first: int, last: int, *, is_last_known: bool = True) -> None:
    """Compare with what was sent, step by step."""
    assert found.numbers.tolist() == sorted({step // width for step in range(first, last)})
    low, high, mean, newest = found.stats[:, :, 0]
    for place, number in enumerate(found.numbers.tolist()):
        begin, end = max(number * width, first), min((number + 1) * width, last)
        values = [norm_of(step) for step in range(begin, end)]
        finite = [value for value in values if math.isfinite(value)]
        counts = found.counts[:, place, 0].tolist()
        nans, infs = sum(map(math.isnan, values)), sum(map(math.isinf, values))
        assert counts == [len(values), nans, infs, finite.count(0.0), 0]
        if finite:
            assert (low[place], high[place]) == (min(finite), max(finite))
            if is_last_known or len(finite) == len(values):
                assert newest[place] == finite[-1]
            assert mean[place] == pytest.approx(sum(finite) / len(finite), rel=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [1, 2, 16, 64, 256, 1024])
def test_what_is_stored_is_what_was_sent(feed: Feed, width: int) -> None:
    feed.steps(0, 2_500)
    feed.settle()

    check(feed.read(width), width, 0, 2_500)
    own = feed.read(width, 700, 1_900)
    begin, end = 700 // width * width, (1_900 // width + 1) * width
    check(own, width, begin, min(end, 2_500))
    loss = feed.read(width, table=RUN_TABLE)
    assert loss.stats[1, -1, 0] == 2_499.0
    assert loss.counts[0].sum() == 2_500


@pytest.mark.parametrize("width", [1, 2, 16, 64, 1024])
@pytest.mark.parametrize("every", [2, 7, 64, 512])
def test_steps_without_a_frame_are_in_the_curves_of_the_run(
    feed: Feed, width: int, every: int
) -> None:
    last = 2_400 // every * every + 1
    feed.sparse_steps(0, 1_024 // every * every + 1, every)
    feed.save()
    feed.kill()
    feed.start()
    feed.sparse_steps(0, last, every)  # what is stored comes again
    feed.settle()

    check(feed.read_run(width), width, 0, last, is_last_known=False)
    own = feed.read_run(width, 700, 1_500)
    first, last = 700 // width * width, min((1_500 // width + 1) * width, last)
    check(own, width, first, last, is_last_known=False)
    assert set(feed.read(1, table=RUN_TABLE).numbers % every) == {0}
    times_ns = feed.read_run(1).times_ns
    assert (np.diff(times_ns) >= 0).all()


def test_wide_buckets_are_read_from_wide_buckets(feed: Feed) -> None:
    """A long curve is not read row by row."""
    feed.steps(0, 16 * 16 * 64 + 100)
    feed.settle()

    for level in (0, 1, 2):
        assert feed.store.curves.stored("r", 1).newest(level) is not None
    newest = feed.store.curves.stored("r", 1).newest(2)
    assert newest is not None
    assert (newest.entries, newest.first_step, newest.last_step) == (64, 0, 16_383)
    with feed.store.curves.read("r", 1) as stored:
        blocks = list(stored.blocks(2, 0, 0, -1, 1 << 40))
    assert [block.facts for block in blocks] == [newest]
    check(feed.read(256), 256, 0, 16_484)


def test_a_kill_costs_no_row_and_doubles_none(tmp_path: Path) -> None:
    feed = Feed(tmp_path / "data")
    feed.steps(0, 100)
    feed.save()
    feed.steps(100, 230)  # with a full chunk, that is written, and rows that are not
    feed.kill()

    feed.start()
    feed.steps(0, 1_100)
    feed.settle()
    feed.save()
    check(feed.read(1), 1, 0, 1_100)
    feed.kill()

    feed.start()
    check(feed.read(1), 1, 0, 1_100)  # from the store alone
    check(feed.read(16), 16, 0, 1_100)
    with feed.recorder.history("r", 1) as history:
        assert history.layers.names == LAYERS
        assert history.layers.is_ordered
        assert [(span.epoch, span.first, span.last) for span in history.spans()] == [(0, 0, 1_099)]
        assert history.newest(0, 10) == 1_090
    feed.kill()


@pytest.mark.parametrize("killed_at", [64, 700, 1_023, 1_024, 1_088, 2_047])
def test_a_restart_makes_the_same_wide_blocks(tmp_path: Path, killed_at: int) -> None:
    """Blocks of which the process forgot the buckets are read again."""
    whole, feed = Feed(tmp_path / "whole"), Feed(tmp_path / "data")
    whole.steps(0, 4_200)
    feed.steps(0, killed_at)
    feed.save()
    feed.kill()
    feed.start()
    feed.steps(0, 4_200)
    check(feed.read(16), 16, 0, 4_200)

    select = "SELECT level, number, epoch, first_step, last_step, entries, upto, body FROM blocks"
    kept = [
        sorted(own.store.db.rows(f"{select} WHERE is_closed AND level < 8"))
        for own in (whole, feed)
    ]
    assert kept[0] == kept[1]
    assert {row[0] for row in kept[0]} == {0, 1}
    whole.kill()
    feed.kill()


def test_buckets_that_left_memory_are_read_again(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.steps(0, 800)
    (kept,) = feed.recorder._kept.values()
    before = kept.num_bytes
    kept.forget_pieces()
    assert kept.num_bytes < before
    feed.steps(800, 1_100)

    newest = feed.store.curves.stored("r", 1).newest(1)
    assert newest is not None
    assert (newest.first_step, newest.last_step, newest.entries) == (0, 1_023, 64)
    check(feed.read(16), 16, 0, 1_100)


def test_a_reader_between_memory_and_store_counts_no_row_twice(feed: Feed) -> None:
    """The store may have blocks that were open when the memory was looked at."""
    feed.steps(0, 1_020)
    (kept,) = feed.recorder._kept.values()
    before = kept.shown
    feed.steps(1_020, 1_100)
    kept.shown = before

    for width in (1, 16, 256):
        check(feed.read(width), width, 0, 1_088)  # the rows after the last closed block come later


def test_a_long_log_that_is_applied_anew_loses_no_row(start: Start) -> None:
    """Blocks are written on the way; the checkpoint and all curves are lost."""
    running, peer = attached(start(retention=RetentionPolicy(checkpoint_s=1e9)))
    peer.steps(0, *[1.0] * 600)
    running.shows(frames=600)
    running.engine._is_ahead = True  # as if it was killed
    for table in ("curves", "blocks", "saved_runs", "saved_attempts"):
        running.store.db.execute(f"DELETE FROM {table}")

    running = start()

    running.shows(frames=600)
    with running.engine.curves.history("gpt", 1) as history:
        assert [(span.first, span.last) for span in history.spans()] == [(0, 599)]
        found = history.buckets(SeriesQuery(0, "l2", np.arange(1), 0, 599), 1)
    assert found.counts[0, :, 0].tolist() == [1] * 600


def test_few_steps_far_apart_are_not_written_twice(feed: Feed) -> None:
    """Buckets that hold one row each would take more room than the rows."""
    feed.steps(0, 1_100 * 100, every=100)
    feed.settle()

    newest = feed.store.curves.stored("r", 1).newest(1)
    assert newest is not None
    assert newest.entries == 0
    found = feed.read(4_096)
    assert found.counts[0, :, 1].sum() == 1_100
    assert found.stats[1, -1, 2] == 1_099 * 100


def test_epochs_are_kept_apart(feed: Feed) -> None:
    """Steps that went back are another curve."""
    feed.steps(0, 300)
    feed.steps(100, 1_300)
    feed.steps(1_000, 1_100)
    feed.settle()

    assert feed.read(16).counts[0, :, 0].sum() == 300
    second = feed.read(16, epoch=1)
    check(second, 16, 100, 1_300)
    check(feed.read(1, epoch=2), 1, 1_000, 1_100)


def test_too_much_costs_the_oldest_single_steps_first(tmp_path: Path) -> None:
    feed = Feed(tmp_path / "data")
    feed.steps(0, 3_000)
    feed.settle()
    (size,) = feed.store.curves.sizes()
    before = size.num_bytes
    feed.recorder._max_bytes = before * 9 // 10
    while feed.recorder._trim():
        pass

    (size,) = feed.store.curves.sizes()
    assert size.num_bytes <= before * 9 // 10
    with feed.recorder.history("r", 1) as history:
        assert history.finest(0, 0) == 16
        assert history.finest(0, 2_900) == 1
        (span,) = history.spans()
    assert (span.first, span.last) == (0, 2_999)
    check(feed.read(16), 16, 0, 3_000)
    feed.kill()


def test_much_too_much_costs_the_beginning_of_a_curve(tmp_path: Path) -> None:
    """Nothing is unbounded, also where no buckets were made; `kept_from` tells of it."""
    for count, every in ((5_000, 1), (2_000, 100)):
        feed = Feed(tmp_path / f"data-{every}")
        feed.steps(0, count * every, every=every)
        feed.settle()
        (size,) = feed.store.curves.sizes()
        feed.recorder._max_bytes = size.num_bytes // 50
        while feed.recorder._trim():
            pass
        with feed.recorder.history("r", 1) as history:
            (span,) = history.spans()
            width = history.finest(0, span.first)
        assert 0 < span.first < span.last == (count - 1) * every
        found = feed.read(max(width, every), span.first)
        assert found.numbers[0] == span.first // found.width
        assert found.numbers[-1] == span.last // found.width
        feed.kill()


def test_what_leaves_memory_leaves_the_store(feed: Feed) -> None:
    feed.steps(0, 2_000)
    feed.settle()
    feed.recorder.forget(Forgotten("r", 1))
    feed.settle()

    assert feed.store.curves.sizes() == []
    for table in ("curves", "blocks"):
        (count,) = feed.store.db.row(f"SELECT count(*) FROM {table}")
        assert count == 0


def test_what_does_not_move_leaves_memory(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    feed.steps(0, 100)
    feed.recorder._let_go()
    feed.recorder._let_go()
    assert feed.recorder._kept  # 36 rows are not in the store yet
    feed.save()
    feed.recorder._let_go()

    assert not feed.recorder._kept
    check(feed.read(1), 1, 0, 100)
    feed.steps(100, 150)
    check(feed.read(1), 1, 0, 150)
    monkeypatch.setattr(curve_recorder, "MAX_BYTES", 0)
    feed.recorder._let_go()
    assert not feed.recorder._kept
    feed.steps(150, 200)
    check(feed.read(1), 1, 0, 200)
    (count,) = feed.store.db.row("SELECT count(*) FROM blocks")
    assert count == 3


def test_a_saved_state_never_stands_for_rows_that_are_not_stored(start: Start) -> None:
    """A restart applies nothing that the state has: rows of a chunk that is not full, too."""
    running, peer = attached(start())
    peer.steps(0, *[1.0] * 10)
    running.shows(frames=10)

    running = start()

    assert running.shows(frames=10).stored == 11
    with running.engine.curves.history("gpt", 1) as history:
        assert [(span.first, span.last) for span in history.spans()] == [(0, 9)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", [1, 16, 256])
def test_gains_are_kept_at_steps_of_their_own(tmp_path: Path, width: int) -> None:
    feed = Feed(tmp_path / "data")
    feed.steps(0, 1_000)
    feed.gains(0, 1_000, every=2)
    feed.save()
    feed.gains(1_000, 1_100, every=2)
    feed.kill()
    feed.start()
    feed.steps(0, 2_300)
    feed.gains(0, 2_300, every=2)
    feed.settle()

    found = feed.read_gains(width)

    assert found.numbers.tolist() == sorted({step // width for step in range(0, 2_300, 2)})
    assert found.counts[0].sum(axis=0).tolist() == [1_150, 800, 0]
    assert found.counts[2].sum(axis=0).tolist() == [1, 0, 0]
    assert found.stats[1, -1].tolist()[:2] == [1.0, 2_298 / 2.0]
    norms = feed.read_gains(width, "output_norm")
    assert norms.counts[0].sum(axis=0).tolist() == [1_150, 1_150, 800]
    assert norms.stats[1, 0].tolist()[0] == float((width - 1) // 2 * 2)
    check(feed.read(width), width, 0, 2_300)
    feed.save()
    feed.kill()
    feed.start()
    again = feed.read_gains(width)
    assert again.counts.tolist() == found.counts.tolist()
    feed.kill()


def test_a_damaged_block_is_a_gap(feed: Feed) -> None:
    feed.steps(0, 200)
    feed.save()
    block = feed.store.curves.stored("r", 1).block(0, 1)
    assert block is not None
    body = bytearray(block.read(0, 1 << 30))
    body[decode_head(block.head).tables["l2"].begin + 20] ^= 1
    feed.store.db.execute("UPDATE blocks SET body = ? WHERE number = 1", (bytes(body),))

    found = feed.read(1)

    assert set(range(200)) - set(found.numbers.tolist()) == set(range(64, 128))
    assert feed.read(1, table=RUN_TABLE).counts[0].sum() == 200


def test_a_column_that_comes_later_is_unknown_before(feed: Feed) -> None:
    feed.steps(0, 70)
    feed.save()

    assert feed.read(1, table="linf").counts[0].sum() == 0
    nans = feed.read(1, 0, 12, table="nans")
    assert (nans.counts[0, :, 0].tolist(), nans.stats[3, :, 0].tolist()) == ([1] * 13, [0.0] * 13)
