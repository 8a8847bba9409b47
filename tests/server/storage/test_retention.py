"""Retention: by age, by size, and never more is taken than a checkpoint has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.core.entries import Entry, Lost, Opened, Received
from gradwatch_server.engine import housekeeping
from gradwatch_server.storage import retention as retention_module
from gradwatch_server.storage.retention import Retention, RetentionPolicy, _excess, long_ended
from gradwatch_server.storage.rows import LogEntry, NewAlertEvent, StorageError
from gradwatch_server.storage.sqlite import database
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_wire import Column, Envelope, Hello, Manifest, Record, encode
from tests.support.engine import Start, attached
from tests.support.records import stats_of
from tests.support.waiting import wait_until
from tests.support.whole_state import WholeState

SECOND = 1_000_000_000
SESSION = bytes(range(16))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore.open(tmp_path / "data", Clock())
    store.db.execute("PRAGMA synchronous=OFF")
    yield store
    store.close()


def line(record: Record, seq: int, at_ns: int, run: str = "gpt") -> LogEntry:
    envelope = Envelope(session=SESSION, seq=seq, low=1, record=record)
    return LogEntry(run, Entry(at_ns, Received(envelope)), encode(envelope))


def noise(layers: int) -> Sequence[float]:
    """Numbers that no packing makes smaller."""
    return [random.random() for _ in range(layers)]


def fill(store: SQLiteStore, count: int, layers: int = 1) -> None:
    """Write a HELLO, a manifest and records, a second apart, each a row of its own."""
    numel = Column.pack("<u8", [1])
    manifest = Manifest(manifest_id=1, names=("a",), numel=numel, dtypes=("f",))
    hello = Hello(run="gpt", rank=0, world=1)
    store.log.append([LogEntry("gpt", Entry(0, Opened(SESSION, hello))), line(manifest, 1, 0)])
    for step in range(count):
        store.log.append([line(stats_of(step, noise(layers)), step + 2, step * SECOND)])


@dataclass(frozen=True)
class Keep:
    """Entries that must stay: those after a number, heads of the sessions in memory."""

    upto: int = 1 << 60
    in_memory: Collection[bytes] | None = (SESSION,)

    def covered(self, _run: str) -> int:
        return self.upto

    def sessions(self, _run: str) -> Collection[bytes] | None:
        return self.in_memory


def trim(store: SQLiteStore, now: int, keep: Keep | None = None, **policy: Any) -> int:
    """Trim until nothing is left to trim; return the number of slices."""
    retention, slices = Retention(store, RetentionPolicy(**policy)), 0
    while retention.trim(now, keep or Keep()):
        slices += 1
        assert slices < 10_000
    return slices


def kept(store: SQLiteStore, run: str = "gpt") -> list[int]:
    return [number for number, _ in store.log.entries(run)]


def test_old_records_go_and_what_they_need_stays(store: SQLiteStore) -> None:
    """HELLO and manifest stay, without which the newer ones could not be read."""
    fill(store, 100)
    trim(store, 150 * SECOND, log_max_age_s=60.0)

    assert kept(store) == [1, 2, *range(93, 103)]
    state = WholeState()
    for _, entry in store.log.entries("gpt"):
        state.apply(entry)
    assert state.runs["gpt"].current.window.series().steps.tolist() == list(range(90, 100))


@pytest.mark.parametrize("below", [0, 1, 2, 40])
def test_nothing_goes_above_the_checkpoint(store: SQLiteStore, below: int) -> None:
    fill(store, 60)
    trim(store, 10**9 * SECOND, Keep(below), log_max_age_s=1.0, log_max_bytes=1)

    assert kept(store) == [1, 2, *range(max(3, below + 1), 63)]


@pytest.mark.slow
def test_too_much_goes_oldest_first_until_it_fits(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_module, "SLICE_BYTES", 1 << 20)
    monkeypatch.setattr(database, "FREE_SLACK_BYTES", 1 << 20)
    fill(store, 1_500, layers=1_000)  # 12 MB
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = Path(store.name).stat().st_size
    slices = trim(store, 0, log_max_bytes=5_000_000)
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    after = Path(store.name).stat().st_size

    assert before > 12_000_000
    assert 2_500_000 < after < 5_000_000 + (1 << 20) + (1 << 20)
    assert slices > 5
    left = kept(store)
    assert left == [1, 2, *range(left[2], 1_503)]
    assert store.db.row("PRAGMA integrity_check") == ("ok",)


def test_a_little_free_space_is_kept_for_what_comes(store: SQLiteStore) -> None:
    """A log at its limit takes in as much as goes, and the file need not move."""
    fill(store, 500, layers=1_000)
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = Path(store.name).stat().st_size
    trim(store, 10**6 * SECOND, log_max_age_s=1.0)
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    assert Path(store.name).stat().st_size == before


def test_alert_events_stay_longest(store: SQLiteStore) -> None:
    store.alert_events.add([NewAlertEvent(f"a{i}", "firing", "gpt", "{}") for i in range(9)])
    day = 86_400 * SECOND
    trim(store, Clock().now_ns() + 300 * day, log_max_age_s=1.0)
    assert store.db.row("SELECT count(*) FROM alert_events") == (9,)
    trim(store, Clock().now_ns() + 400 * day)

    assert list(store.db.rows("SELECT cursor FROM alert_events")) == [(9,)]
    assert store.alert_events.add([NewAlertEvent("b", "firing", "gpt", "{}")]) == 10


@pytest.mark.parametrize(
    ("in_memory", "left"), [((SESSION,), [1, 2]), ((), []), (None, [])], ids=["all", "none", "run"]
)
def test_what_was_kept_of_sessions_goes_with_their_records(
    store: SQLiteStore, in_memory: Collection[bytes] | None, left: list[int]
) -> None:
    fill(store, 10)
    trim(store, 10**6 * SECOND, Keep(in_memory=in_memory), log_max_age_s=1.0)

    assert kept(store) == left


def test_a_full_disk_while_trimming_changes_nothing(store: SQLiteStore) -> None:
    """The slice is done later."""
    fill(store, 50)
    before = kept(store)
    retention = Retention(store, RetentionPolicy(log_max_age_s=1.0))
    store.db.execute("PRAGMA query_only=1")
    with pytest.raises(StorageError):
        retention.trim(10**6 * SECOND, Keep())
    store.db.execute("PRAGMA query_only=0")
    assert kept(store) == before

    assert retention.trim(10**6 * SECOND, Keep())
    assert kept(store) == [1, 2]


@pytest.mark.slow
def test_a_noisy_run_pays_for_itself(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """S25: the records of the run that has most go, its oldest first; quiet runs keep theirs,
    although they are the oldest of all."""
    monkeypatch.setattr(retention_module, "SLICE_BYTES", 1 << 20)
    sent: Counter[str] = Counter()

    def send(run: str, count: int, layers: int) -> None:
        for _ in range(count):
            number = sent[run] = sent[run] + 1
            store.log.append([line(stats_of(number, noise(layers)), number, number, run)])

    send("quiet", 300, 100)
    for _ in range(20):
        send("noisy", 50, 1_500)
        send("third", 5, 1_000)
        trim(store, 0, log_max_bytes=4_000_000)
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    assert (len(kept(store, "quiet")), len(kept(store, "third"))) == (300, 100)
    noisy = kept(store, "noisy")
    assert 100 < len(noisy) < 500
    assert noisy == list(range(1_001 - len(noisy), 1_001))
    assert store.used_bytes() < 5_500_000


def test_runs_that_are_all_as_large_lose_as_much(store: SQLiteStore) -> None:
    for step in range(400):
        records = [line(stats_of(step, noise(1_000)), step + 1, step, run) for run in "xy"]
        store.log.append(records)
    trim(store, 0, log_max_bytes=3_000_000)

    assert 100 < len(kept(store, "x")) < 250
    assert abs(len(kept(store, "x")) - len(kept(store, "y"))) <= 2


@pytest.mark.slow
def test_alert_events_have_a_size_of_their_own(store: SQLiteStore) -> None:
    """S25: those of the run that has most go, and no record for them."""
    for number in range(300):
        store.log.append([line(stats_of(number, noise(100)), number + 1, number, "quiet")])
    quiet = [NewAlertEvent(f"q{n}", "firing", "quiet", "{}") for n in range(50)]
    store.alert_events.add(quiet)
    for number in range(30):
        body = f'{{"x": "{"x" * 20_000}"}}'
        noisy = [NewAlertEvent(f"{number} {n}", "firing", "noisy", body) for n in range(20)]
        store.alert_events.add(noisy)
        trim(store, 0, log_max_bytes=3_000_000, alerts_max_bytes=2_000_000)

    assert len(kept(store, "quiet")) == 300
    events = dict(store.db.rows("SELECT run, count(*) FROM alert_events GROUP BY run"))
    assert events["quiet"] == 50
    assert 50 < events["noisy"] <= 100
    assert store.alert_events.newest() == 650


def test_records_that_were_stamped_in_the_future_go_with_their_neighbours(
    store: SQLiteStore,
) -> None:
    """S48: a clock that was wrong for a while must not stop the trimming for good."""
    times = [1, 2, 4 * 10**9, 4 * 10**9, 3, 4 * 10**9, 400]
    for number, at_s in enumerate(times):
        store.log.append([line(stats_of(number, [1.0]), number + 1, at_s * SECOND)])
    trim(store, 420 * SECOND, log_max_age_s=60.0)

    assert kept(store) == [6, 7]


@pytest.mark.parametrize(
    ("sizes", "too_much", "excess"),
    [
        ({"a": 10, "b": 4, "c": 1}, 3, {"a": 3}),
        ({"a": 10, "b": 4, "c": 1}, 6, {"a": 6}),
        ({"a": 10, "b": 4, "c": 1}, 8, {"a": 7, "b": 1}),
        ({"a": 10, "b": 4, "c": 1}, 14, {"a": 10, "b": 4, "c": 1}),
        ({"a": 10, "b": 4, "c": 1}, 100, {"a": 10, "b": 4, "c": 1}),
        ({"a": 5, "b": 5}, 4, {"a": 2, "b": 2}),
        ({"a": 5}, -1, {}),
        ({}, 5, {}),
    ],
)
def test_who_has_most_is_cut_first(
    sizes: dict[str, int], too_much: int, excess: dict[str, int]
) -> None:
    assert _excess(sizes, too_much) == excess


def state_of(*bodies: Any) -> WholeState:
    state = WholeState()
    for second, body in enumerate(bodies):
        state.apply(Entry(second * SECOND, body))
    return state


def test_only_what_ended_long_ago_is_forgotten() -> None:
    """Attempts that were given up, and runs of which no rank is alive."""
    one, two = bytes(16), bytes([1] * 16)
    first = Opened(one, Hello(run="gpt", rank=0, world=1, job="1"))
    again = Opened(two, Hello(run="gpt", rank=0, world=1, job="2"))

    def gone(state: WholeState, last_seen: dict[bytes, int] | None = None, now_s: int = 100) -> Any:
        found = long_ended(state, last_seen or {}, now_s * SECOND, 60.0)
        return [(body.run, body.attempts) for body in found]

    assert gone(state_of(first)) == []
    assert gone(state_of(first, Lost(one))) == [("gpt", 1)]
    assert gone(state_of(first, Lost(one)), now_s=50) == []
    assert gone(state_of(first, Lost(one)), {one: 90 * SECOND}) == []
    assert gone(state_of(first, Lost(one), again)) == [("gpt", 1)]
    assert gone(state_of(first, again, Lost(two))) == []
    assert gone(state_of(first, Lost(one), again, Lost(two))) == [("gpt", 2)]


@pytest.mark.slow
def test_a_run_that_ended_long_ago_makes_room_for_another(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "FORGET_NS", 0)
    running, peer = attached(
        start(session_timeout_s=1.0, retention=RetentionPolicy(runs_max_age_s=3.0))
    )
    peer.steps(0, float("nan"))
    wait_until(lambda: "gpt" not in running.published.revisions)
    running.peer(run="next").attach()
    running.shows("next")
    assert set(running.published.last_seen) == {running.view("next").ranks[0].session}
    again = running.peer().attach()
    again.steps(0, float("nan"))

    assert running.shows(frames=1).attempt == 2
    stored = running.store.alert_events.after(0)
    assert [(event.alert["rule"], event.alert["attempt"]) for event in stored] == [
        *(("nonfinite", 1), ("liveness", 1), ("nonfinite", 2))
    ]
    running = start(endpoint=running.endpoint)
    assert (running.view().attempt, running.published.cursor) == (2, 3)
    # A session that was forgotten is told so, and says HELLO anew.
    assert peer.greet().acked == 0
