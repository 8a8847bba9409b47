"""Checkpoints: whatever happens to a process or to a saved row, the state is that of the log."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradwatch_server.budgets import LoggedBudgets
from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.silences import Silence
from gradwatch_server.core.entries import (
    Acknowledged,
    BudgetsSet,
    Entry,
    Forgotten,
    FramesClosed,
    Gap,
    Lost,
    ManifestsDropped,
    Opened,
    Received,
    RulesSet,
    SilenceAdded,
    SilenceRemoved,
    Tick,
)
from gradwatch_server.core.state import State
from gradwatch_server.core.views.health import health
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_server.storage import checkpointer as checkpointer_module
from gradwatch_server.storage.checkpointer import Checkpointer
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_server.storage.rows import LogEntry, StorageError
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_wire import Column, Envelope, Hello, Manifest, Record, Stats, encode
from gradwatch_wire.jsonable import jsonable
from tests.support.whole_state import concerned

pytestmark = pytest.mark.slow

SECOND = 1_000_000_000
START_NS = 1_763_000_000 * SECOND
NAN = math.nan
MANIFEST: dict[str, Any] = {
    "manifest_id": 1,
    "names": ("a", "b"),
    "numel": Column.pack("<u8", [10, 10]),
    "dtypes": ("f", "f"),
}


class Aggregator:
    """A store, its checkpointer and the state, without sockets: what the engine does with them."""

    def __init__(self, directory: Path, window_steps: int = 12, **policy: Any) -> None:
        clock = Clock()
        self.store = SQLiteStore.open(directory, clock)
        self.path = Path(self.store.name)
        # A killed process loses nothing that the system has; only a power cut would.
        self.store.db.execute("PRAGMA synchronous=OFF")
        policy = {"checkpoint_s": 1e9} | policy
        self.checkpointer = Checkpointer(self.store, RetentionPolicy(**policy), clock)
        self.window_steps = window_steps
        self.now_ns = START_NS
        self.told: list[Alert] = []
        self.state = State(window_steps)
        self.tail = 0
        for name in self.checkpointer.find_runs():
            self._read(name)
        self.now_ns = max(
            [START_NS, *(session.last_ns for session in self.state.sessions.values())]
        )

    def _read(self, name: str) -> None:
        run = self.checkpointer.load(name, self.window_steps)
        if run is not None:
            self.state.add(run)
        start = self.store.state.forgotten(name).position if run is None else run.position
        self.store.log.skip_to(name, start)
        for number, entry in self.store.log.entries(name, start):
            self._apply(name, entry, number)
            self.tail += 1
        if name in self.state.runs:
            self.state.runs[name].is_relearnt = self.checkpointer.is_damaged(name)

    def put(self, body: Any) -> None:
        self.now_ns += 1_000_000
        raw = encode(body.envelope) if isinstance(body, Received) else None
        entry = Entry(self.now_ns, body)
        names = concerned(self.state, entry)
        if isinstance(body, RulesSet):
            self.state.rules = Rules.model_validate_json(body.rules)
        if isinstance(body, Opened) and body.hello.run not in self.state.runs:
            name = body.hello.run
            began = self.state.beginning(name, self.store.state.forgotten(name).attempts)
            self._put(name, Entry(self.now_ns, began), None)
        for name in names:
            self._put(name, entry, raw)

    def _put(self, name: str, entry: Entry, raw: bytes | None) -> None:
        self._apply(name, entry, self.store.log.last(name) + 1)
        with self.store.transaction():
            self.store.log.append([LogEntry(name, entry, raw)])
            self.checkpointer.write_forgotten(self.now_ns)
        self.checkpointer.committed()

    def _apply(self, name: str, entry: Entry, number: int) -> None:
        run = self.state.runs.get(name)
        self.checkpointer.begin(name, run)
        self.told += self.state.apply_to(name, entry, number)
        self.checkpointer.end(name, self.state.runs.get(name))
        if run is not None and not run.attempts:
            self.checkpointer.forget(run)

    def open(self, run: str, session: bytes, **hello: Any) -> None:
        given: dict[str, Any] = {"rank": 0, "world": 1} | hello
        self.put(Opened(session, Hello(run=run, **given)))
        self.send(session, Manifest(**MANIFEST))

    def send(self, session: bytes, record: Record) -> None:
        seq = self.state.sessions[session].acked + 1
        self.put(Received(Envelope(session=session, seq=seq, low=1, record=record)))

    def stats(self, session: bytes, *norms: float) -> None:
        for norm in norms:
            step = self.state.sessions[session].last_step + 1
            columns = {"l2": Column.pack("<f8", [norm, 1.0]), "zeros": Column.pack("<u4", [0, 1])}
            self.send(session, Stats(manifest_id=1, step=step, columns=columns))

    def save(self) -> None:
        """Save the run that has waited longest."""
        saves = self.checkpointer.encode(list(self.checkpointer._unsaved), self.state)
        with self.store.transaction():
            self.store.state.save({}, saves)
        self.checkpointer.saved(saves, self.state)

    def save_all(self) -> None:
        while self.checkpointer._unsaved:
            self.save()

    def crashed(self, window_steps: int | None = None) -> Aggregator:
        """Return what a process finds when this one is killed now."""
        directory = Path(tempfile.mkdtemp(dir=self.path.parent.parent))
        for file in self.path.parent.glob("gradwatch.db*"):
            shutil.copy(file, directory)
        return Aggregator(directory, window_steps or self.window_steps)

    def story(self) -> Any:
        return story_of(self.state)

    def close(self) -> None:
        self.store.close()


def story_of(state: State) -> Any:
    """Return all that can be seen of a state, comparable even with NaN in it."""
    views = []
    for _, run in sorted(state.runs.items()):
        view = view_run(run)
        series = [getattr(view.series, name).tolist() for name in view.series.__slots__]
        frame = view.frame and (view.frame.columns.tolist(), view.frame.l2_max.tolist())
        before = [list(run.current.window.before(layer, 999)) for layer in range(2)]
        alerts = [jsonable(alert.to_dict()) for alert in view.alerts]
        rest = replace(view, series=None, frame=None, flags=None, groups={}, alerts=())  # type: ignore[arg-type]  # compared apart
        settings = run.rules, run.budgets, run.silences.state_dict(), run.position
        views.append(repr((rest, series, frame, before, alerts, settings)))
    acked = {session.id: session.acked for session in state.sessions.values()}
    return views, acked


Begin: TypeAlias = Callable[..., Aggregator]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start on `tmp_path / "data"`."""
    made: list[Aggregator] = []

    def start(**settings: Any) -> Aggregator:
        made.append(Aggregator(tmp_path / "data", **settings))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture(autouse=True)
def _one_run_per_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointer_module, "SLICE_BYTES", 0)


def numbered(number: int) -> bytes:
    return number.to_bytes(16, "big")


# Any order of what the engine may write, with saves and crashes anywhere.

RUNS = st.sampled_from(["x", "y", "z"])
NORMS = st.sampled_from([1.0, 1.0, 1.0, 500.0, 500.0, 1e-9, NAN])
HISTORY = [1.0, 1.2, 0.9, 1.1] * 10
"""As many frames as rules need to know what is usual."""

DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("stats"), RUNS, st.lists(NORMS, min_size=1, max_size=9)),
        st.tuples(st.just("stats"), RUNS, st.lists(NORMS, min_size=1, max_size=9)),
        st.tuples(st.just("stats"), RUNS, st.just(HISTORY)),
        st.tuples(st.just("open"), RUNS, st.integers(1, 2)),
        st.tuples(st.just("gap"), RUNS, st.integers(1, 5)),
        st.tuples(st.just("end"), RUNS, st.just(0)),
        st.tuples(st.just("forget"), RUNS, st.just(0)),
        st.tuples(st.just("rules"), RUNS, st.sampled_from([20.0, 1000.0])),
        st.tuples(st.just("budgets"), RUNS, st.sampled_from([1 << 21, 1 << 26])),
        st.tuples(st.just("close"), RUNS, st.sampled_from([0, 3_000])),
        st.tuples(st.just("drop"), RUNS, st.just(0)),
        st.tuples(st.just("silence"), RUNS, st.sampled_from([0.01, 5.0])),
        st.tuples(st.just("unsilence"), RUNS, st.just(0)),
        st.tuples(st.just("ack"), RUNS, st.just(0)),
        st.tuples(st.just("tick"), RUNS, st.sampled_from([1, 6])),
        st.tuples(st.just("save"), RUNS, st.just(0)),
        st.tuples(st.just("save"), RUNS, st.just(0)),
        st.tuples(st.just("save all"), RUNS, st.just(0)),
        st.tuples(st.just("crash"), RUNS, st.just(0)),
    ),
    min_size=4,
    max_size=25,
)


class Story:
    """Does what any engine may do, and keeps no more of it than the log has."""

    def __init__(self) -> None:
        self.sessions: dict[str, bytes] = {}
        self.numbers = itertools.count(1)

    def do(self, own: Aggregator, deed: str, run: str, value: Any) -> None:  # noqa: C901 - a table
        session = self.sessions.get(run)
        if deed == "save":
            own.save()
        elif deed == "save all":
            own.save_all()
        elif deed == "tick":
            own.now_ns += value * SECOND
            own.put(Tick())
        elif deed == "rules":
            rules = Rules.model_validate({"exploding": {"limit": value}})
            own.put(RulesSet(rules.json_text))
        elif deed == "budgets":
            own.put(BudgetsSet(json.dumps(dict.fromkeys(LoggedBudgets.model_fields, value))))
        elif deed in ("silence", "unsilence", "ack"):
            self.ask(own, deed, run, value)
        elif deed == "open" or session is None:
            self.sessions[run] = numbered(next(self.numbers))
            world = value if deed == "open" else 1
            own.open(run, self.sessions[run], world=world)
        elif deed == "stats":
            own.stats(session, *value)
        elif deed == "gap":
            first = own.state.sessions[session].acked + 1
            own.put(Gap(session, first, first + value - 1))
        elif deed == "end":
            own.put(Lost(session))
        elif deed == "close":
            own.put(FramesClosed(run, own.state.runs[run].current.number, value))
        elif deed == "drop":
            own.put(ManifestsDropped(session, value))
        elif deed == "forget":
            own.put(Forgotten(run, own.state.runs[run].current.number))
            del self.sessions[run]

    def ask(self, own: Aggregator, deed: str, run: str, value: Any) -> None:
        if deed == "silence":
            until_ns = own.now_ns + round(value * SECOND)
            own_id = f"silence {next(self.numbers)}"
            own.put(SilenceAdded(Silence(own_id, run, "*", "*", until_ns, own.now_ns, "ada", "")))
        elif deed == "unsilence":
            for silence in list(own.state.silences)[:1]:
                own.put(SilenceRemoved(silence.id))
        elif run in own.state.runs:
            for alert in own.state.runs[run].current.active_alerts.alerts()[:1]:
                own.put(Acknowledged(run, alert.attempt, alert.id, "ada", "seen"))


@given(deeds=DEEDS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_a_crash_anywhere_changes_nothing(deeds: list[Any]) -> None:
    """Windows, alerts, ids, positions, rules and names are as if nothing had happened."""
    with tempfile.TemporaryDirectory() as scratch:
        own, story = Aggregator(Path(scratch) / "data"), Story()
        told: list[Alert] = []
        for deed, run, value in [*deeds, ("crash", "", 0)]:
            if deed != "crash":
                story.do(own, deed, run, value)
                continue
            found = own.crashed()
            told += own.told
            own.close()
            own = found
            assert story_of_log(own) == own.story()
        # What is told twice has the id and change of the first time, and says the same.
        rows = [(a.id, a.change, a.severity, a.message) for a in own.told]
        assert set(rows) <= {(a.id, a.change, a.severity, a.message) for a in told}
        own.close()


def story_of_log(own: Aggregator) -> Any:
    """Apply the whole log anew."""
    state = State(window_steps=own.window_steps)
    for run in own.store.log.runs():
        for number, entry in own.store.log.entries(run):
            state.apply_to(run, entry, number)
    return story_of(state)


def test_a_restart_applies_only_what_came_after_the_save(begin: Begin) -> None:
    own = begin()
    for number, run in enumerate("xy", 1):
        own.open(run, numbered(number))
        own.stats(numbered(number), *[1.0] * 30)
    own.save_all()
    own.stats(numbered(1), 2.0, 3.0)

    found = own.crashed()

    assert found.tail == 2
    assert found.story() == own.story()
    found.close()


def test_open_records_stay_in_the_log_and_are_read_again(begin: Begin) -> None:
    """A save has no numbers of a record that waits for another rank, and trimming leaves it."""
    own = begin(log_max_bytes=0)
    own.open("x", numbered(1))
    own.open("x", numbered(2), rank=0, world=2)
    own.stats(numbered(1), *[1.0] * 30)
    own.save_all()
    waiting = own.state.runs["x"].position + 1
    own.stats(numbered(2), *[2.0] * 200)
    body = own.checkpointer.encode(["x"], own.state)[0].attempts[2]
    own.save_all()
    while own.checkpointer.trim(own.now_ns, own.state) is False:
        own.checkpointer._trim_ns = 0

    assert body.count(Column.pack("<f8", [2.0, 1.0]).data) == 0
    numbers = [number for number, _ in own.store.log.entries("x")]
    assert waiting - 1 not in numbers
    assert [number for number in numbers if number >= waiting] == [*range(waiting, waiting + 200)]
    found = own.crashed()
    assert (found.tail, found.story()) == (0, own.story())
    columns = {tuple(sorted(record.columns)) for record in found.state.runs["x"].open_records()}
    assert columns == {("l2", "zeros")}
    for each in (own, found):  # the other rank comes, and the frames close
        each.put(Opened(numbered(3), Hello(run="x", rank=1, world=2)))
        each.send(numbered(3), Manifest(**MANIFEST))
        each.stats(numbered(3), *[2.0] * 200)
    assert found.state.runs["x"].current.num_frames == 200
    assert found.story() == own.story()
    found.close()


def test_a_record_that_is_far_ahead_is_saved_with_its_numbers(begin: Begin) -> None:
    """A record that confirms it may never come, and the log is trimmed all the same."""
    own = begin()
    for rank in range(2):
        own.put(Opened(numbered(rank), Hello(run="x", rank=rank, world=2)))
        own.send(numbered(rank), Manifest(**MANIFEST))
    for rank in range(2):
        own.stats(numbered(rank), 1.0)
    columns = {"l2": Column.pack("<f8", [3.0, 1.0])}
    own.send(numbered(0), Stats(manifest_id=1, step=1 << 30, columns=columns))
    own.save_all()

    assert own.checkpointer.covered("x", own.state) == own.state.runs["x"].position
    newest = own.store.log.last_row
    own.store.db.execute("DELETE FROM log WHERE id = ?", (newest,))
    found = own.crashed()
    assert (found.tail, found.story()) == (0, own.story())
    for each in (own, found):
        each.put(Lost(numbered(1)))
        each.put(Lost(numbered(0)))
    frame = found.state.runs["x"].current.last_frame
    assert frame is not None
    assert (frame.step, frame.l2_max.tolist()) == (1 << 30, [3.0, 1.0])
    assert found.story() == own.story()
    found.close()


def test_an_open_record_that_the_log_lacks_is_a_damaged_checkpoint(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    own = begin()
    own.open("x", numbered(1), world=2)
    own.stats(numbered(1), *[1.0] * 3)
    own.save_all()
    newest = own.store.log.last_row
    own.store.db.execute("DELETE FROM log WHERE id = ?", (newest - 1,))

    found = own.crashed()

    assert "cannot be used, its log is read" in caplog.text
    assert "lacks entry" in caplog.text
    assert found.state.runs["x"].is_relearnt
    assert len(list(found.state.runs["x"].open_records())) == 2
    found.close()


@pytest.mark.parametrize("steps", [8, 40])
def test_a_window_of_another_size_is_taken_over(begin: Begin, steps: int) -> None:
    own = begin()
    own.open("x", numbered(1))
    own.stats(numbered(1), *[float(i + 1) for i in range(30)])
    own.save_all()

    found = own.crashed(window_steps=steps)
    window = found.state.runs["x"].current.window
    assert window.series().steps.tolist() == [*range(30)][-min(steps, 12) :]
    found.stats(numbered(1), 99.0)
    found.save_all()
    again = found.crashed()

    assert again.tail == 0
    assert again.story() == found.story()
    found.close()
    again.close()


def change_row(store: SQLiteStore, table: str, change: Callable[[bytes], bytes | None]) -> None:
    (rowid, body) = store.db.row(f"SELECT rowid, body FROM {table}")
    store.db.execute(f"UPDATE {table} SET body = ? WHERE rowid = ?", (change(body), rowid))


FOREIGN = {
    "a bit": lambda body: body[:-1] + bytes([body[-1] ^ 1]),
    "cut off": lambda body: body[: len(body) // 2],
    "empty": lambda body: b"",
    "another thing": lambda body: sealed([1, 2, 3]),
}


def sealed(plain: Any) -> bytes:
    import zlib

    body: bytes = msgpack.packb(plain)
    return zlib.crc32(body).to_bytes(4, "little") + body


@pytest.mark.parametrize("table", ["saved_runs", "saved_attempts"])
@pytest.mark.parametrize("damage", FOREIGN)
def test_a_damaged_row_is_passed_over_and_the_log_is_read(
    begin: Begin, caplog: pytest.LogCaptureFixture, table: str, damage: str
) -> None:
    own = begin()
    for number, run in enumerate("xy", 1):
        own.open(run, numbered(number))
        own.stats(numbered(number), 1.0, NAN, 500.0)
    own.save_all()
    own.stats(numbered(1), 2.0)
    change_row(own.store, table, FOREIGN[damage])

    found = own.crashed()

    assert found.story() == own.story()
    assert found.tail > 1
    assert sorted(run.is_relearnt for run in found.state.runs.values()) == [False, True]
    reasons = [health(view_run(run), {}, 0)["reasons"] for run in found.state.runs.values()]
    told = [any("checkpoint could not be read" in own for own in each) for each in reasons]
    assert sorted(told) == [False, True]
    assert "cannot be used, its log is read" in caplog.text
    found.save_all()
    again = found.crashed()
    assert (again.tail, again.story()) == (0, own.story())
    found.close()
    again.close()


def test_many_runs_are_saved_in_slices_of_time(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = begin()
    for number in range(1, 60):
        own.open(f"run{number}", numbered(number))
    monkeypatch.setattr(checkpointer_module, "SLICE_BYTES", 1 << 30)
    times = itertools.count(own.now_ns, 1_000_000)
    monkeypatch.setattr(own.checkpointer._clock, "now_ns", lambda: next(times))

    left = []
    while own.checkpointer._unsaved:
        own.save()
        left.append(len(own.checkpointer._unsaved))

    per_slice = checkpointer_module.SLICE_NS // 1_000_000
    assert left == [*range(59 - per_slice, 0, -per_slice), 0]
    found = own.crashed()
    assert (found.tail, found.story()) == (0, own.story())
    found.close()


def test_a_full_disk_fails_a_save_and_changes_nothing(begin: Begin) -> None:
    """Ingest goes on; the save is done once there is room."""
    own = begin()
    own.open("x", numbered(1))
    own.save_all()
    own.stats(numbered(1), *[1.0] * 12)
    db = own.store.db
    pages = db.number("page_count")
    for number in range(2, 200):  # more runs than there is room for
        own.open(f"run{number}", numbered(number))
        own.stats(numbered(number), 1.0)
    db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StorageError, match="full"):
        own.save_all()
    found = own.crashed()
    assert found.story() == own.story()
    found.close()

    db.execute("PRAGMA max_page_count=1000000")
    own.save_all()
    again = own.crashed()

    assert (again.tail, again.story()) == (0, own.story())
    again.close()


def test_a_torn_tail_of_the_wal_costs_what_was_not_committed(begin: Begin) -> None:
    """Cut anywhere, the file is a state of some time, and what is saved fits to the log."""
    own = begin()
    own.open("x", numbered(1))
    stories = []
    for step in range(12):
        own.stats(numbered(1), 500.0 if step % 3 else 1.0)
        stories.append(own.story())
        if step % 4 == 3:
            own.save_all()
    wal = own.path.with_name("gradwatch.db-wal").stat().st_size
    for size in range(wal - 1, wal // 2, -wal // 23):
        directory = Path(tempfile.mkdtemp(dir=own.path.parent.parent))
        for file in own.path.parent.glob("gradwatch.db*"):
            if not file.name.endswith("-shm"):
                shutil.copy(file, directory)
        os.truncate(directory / "gradwatch.db-wal", size)
        found = Aggregator(directory)
        assert found.story() in stories
        assert found.store.db.row("PRAGMA integrity_check") == ("ok",)
        found.close()


def num_logged(own: Aggregator) -> int:
    return sum(map(own.store.log.last, own.store.log.runs()))


WRITER = """
    import itertools, sys
    from pathlib import Path
    import tests.server.storage.test_checkpointer as t
    t.checkpointer_module.SLICE_BYTES = 50_000
    own = t.Aggregator(Path(sys.argv[1]))
    for number in range(1, 6):
        if t.numbered(number) not in own.state.sessions:
            own.open(f"run{number}", t.numbered(number))
    for step in itertools.count():
        for number in range(1, 6):
            own.stats(t.numbered(number), 500.0 if step % 9 > 6 else 1.0)
            if step % 2:
                own.save()
        print(t.num_logged(own), flush=True)
"""


@pytest.mark.exhaustive
def test_killed_while_saving_nothing_is_lost(tmp_path: Path) -> None:
    """Twelve times, at any moment: what was committed is there, and the state is the log's."""
    directory = tmp_path / "data"
    for number in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(directory)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        assert process.stdout is not None
        for _ in range(3):
            committed = int(process.stdout.readline())
        time.sleep(0.003 * number)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        found = Aggregator(directory)
        assert num_logged(found) >= committed
        assert found.story() == story_of_log(found)
        assert found.store.db.row("PRAGMA integrity_check") == ("ok",)
        found.close()


def test_runs_that_there_was_no_time_for_are_due_again(begin: Begin) -> None:
    """The engine does not rest before they are saved."""
    own = begin(checkpoint_s=1.0)
    for number in (1, 2):
        own.open(f"run{number}", numbered(number))
    found = []
    for minutes in (1, 2):
        saves = own.checkpointer.due(time.time_ns() + minutes * 60 * SECOND, own.state)
        own.checkpointer.saved(saves, own.state)
        found.append((len(saves), own.checkpointer.is_done))

    assert found == [(1, False), (1, True)]
