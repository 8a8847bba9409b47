"""Retention: by age, by size, and never more is taken than a checkpoint has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.core.entries import Entry, Lost, Opened, Received, RulesSet, Tick
from gradwatch_server.core.state import State
from gradwatch_server.engine import housekeeping
from gradwatch_server.storage import retention as retention_module
from gradwatch_server.storage.retention import Retention, RetentionPolicy, long_ended
from gradwatch_server.storage.sqlite import database
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_server.storage.store import Line, NewAlertEvent, StorageError
from gradwatch_server.storage.usage import Usage, decode_usage, encode_usage
from gradwatch_wire import Column, Envelope, Hello, Kind, Manifest, Record, encode
from tests.support.engine import Start
from tests.support.peer import NewPeer
from tests.support.records import stats_of
from tests.support.waiting import wait_until

SECOND = 1_000_000_000
SESSION = bytes(range(16))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore.open(tmp_path / "data", Clock())
    store.db.execute("PRAGMA synchronous=OFF")
    yield store
    store.close()


def line(record: Record, seq: int, at_ns: int, session: bytes = SESSION) -> Line:
    envelope = Envelope(session=session, seq=seq, low=1, record=record)
    return Line(Entry(at_ns, Received(envelope)), encode(envelope))


def fill(store: SQLiteStore, make_stats: Any, count: int, layers: int = 1) -> None:
    """Write a HELLO, a manifest and records, a second apart."""
    numel = Column.pack("<u8", [1])
    manifest = Manifest(manifest_id=1, names=("a",), numel=numel, dtypes=("f",))
    hello = Hello(run="gpt", rank=0, world=1)
    lines = [Line(Entry(0, Opened(SESSION, hello))), line(manifest, 1, 0)]
    lines += [
        line(make_stats(step, [1.0] * layers), step + 2, step * SECOND) for step in range(count)
    ]
    store.log.append(lines)


def knowing() -> State:
    """Return a state that has the session."""
    state = State()
    state.apply(Entry(0, Opened(SESSION, Hello(run="gpt", rank=0, world=1))))
    return state


def trim(store: SQLiteStore, now: int, upto: int, state: State | None = None, **policy: Any) -> int:
    """Trim until nothing is left to trim; return the number of slices."""
    retention, slices = Retention(store, RetentionPolicy(**policy)), 0
    while retention.trim(now, upto, state or knowing()):
        slices += 1
        assert slices < 10_000
    return slices


def kept(store: SQLiteStore) -> list[int]:
    return [offset for (offset,) in store.db.execute("SELECT log_offset FROM log")]


def test_old_records_go_and_what_they_need_stays(store: SQLiteStore) -> None:
    """HELLO and manifest stay, without which the newer ones could not be read."""
    fill(store, stats_of, 100)
    trim(store, 150 * SECOND, 102, log_max_age_s=60.0)

    assert kept(store) == [1, 2, *range(93, 103)]
    state = State()
    for _, entry in store.log.entries():
        state.apply(entry)
    assert state.runs["gpt"].current.window.series().steps.tolist() == list(range(90, 100))


@pytest.mark.parametrize("below", [0, 1, 2, 40])
def test_nothing_goes_above_the_checkpoint(store: SQLiteStore, below: int) -> None:
    fill(store, stats_of, 60)
    trim(store, 10**9 * SECOND, below, log_max_age_s=1.0, log_max_bytes=1)

    assert kept(store) == [1, 2, *range(max(3, below + 1), 63)]


@pytest.mark.slow
def test_too_much_goes_oldest_first_until_it_fits(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_module, "SLICE_BYTES", 1 << 20)
    monkeypatch.setattr(database, "FREE_SLACK_BYTES", 1 << 20)
    fill(store, stats_of, 1_500, layers=1_000)  # 12 MB
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = Path(store.name).stat().st_size
    slices = trim(store, 0, store.log.last_offset, log_max_bytes=5_000_000)
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    after = Path(store.name).stat().st_size

    assert before > 12_000_000
    assert 2_500_000 < after < 5_000_000 + (1 << 20) + (1 << 20)
    assert slices > 5
    left = kept(store)
    assert left == [1, 2, *range(left[2], 1_503)]
    assert store.db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_little_free_space_is_kept_for_what_comes(store: SQLiteStore) -> None:
    """A log at its limit takes in as much as goes, and the file need not move."""
    fill(store, stats_of, 500, layers=1_000)
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = Path(store.name).stat().st_size
    trim(store, 10**6 * SECOND, store.log.last_offset, log_max_age_s=1.0)
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    assert Path(store.name).stat().st_size == before


def test_a_log_that_was_trimmed_to_nothing_goes_on_counting(store: SQLiteStore) -> None:
    """A number that was used again would hide a record that a checkpoint seems to have."""
    store.log.append([Line(Entry(1, Tick())) for _ in range(5)])
    trim(store, 10**9 * SECOND, 5, log_max_age_s=1.0)
    assert kept(store) == []
    store.log.append([Line(Entry(2, Tick()))])

    assert kept(store) == [6]


def test_alert_events_stay_longest(store: SQLiteStore) -> None:
    store.alert_events.add([NewAlertEvent(f"a{i}", "firing", "gpt", "{}") for i in range(9)])
    day = 86_400 * SECOND
    trim(store, Clock().now_ns() + 300 * day, 0, log_max_age_s=1.0)
    assert store.db.execute("SELECT count(*) FROM alert_events").fetchone() == (9,)
    trim(store, Clock().now_ns() + 400 * day, 0)

    assert store.db.execute("SELECT cursor FROM alert_events").fetchall() == [(9,)]
    assert store.alert_events.add([NewAlertEvent("b", "firing", "gpt", "{}")]) == 10


def test_what_was_kept_of_sessions_goes_with_them(store: SQLiteStore) -> None:
    fill(store, stats_of, 10)
    other = bytes(16)
    store.log.append([Line(Entry(0, Opened(other, Hello(run="other", rank=0, world=1))))])
    retention = Retention(store, RetentionPolicy(log_max_age_s=1.0))
    while retention.trim(10**6 * SECOND, store.log.last_offset, State()):
        pass
    assert kept(store) == [1, 2, 13]
    retention.trim_sessions([*(number.to_bytes(16, "big") for number in range(1, 1_200)), SESSION])

    assert kept(store) == [13]


def test_a_full_disk_while_trimming_changes_nothing(store: SQLiteStore) -> None:
    """The slice is done later."""
    fill(store, stats_of, 50)
    before = kept(store)
    retention = Retention(store, RetentionPolicy(log_max_age_s=1.0))
    store.db.execute("PRAGMA query_only=1")
    with pytest.raises(StorageError):
        retention.trim(10**6 * SECOND, store.log.last_offset, State())
    store.db.execute("PRAGMA query_only=0")
    assert kept(store) == before

    assert retention.trim(10**6 * SECOND, store.log.last_offset, State())
    assert kept(store) == [1, 2]


NOISY, QUIET, THIRD = (bytes([number] * 16) for number in (7, 8, 9))


def state_with(store: SQLiteStore, **sessions: bytes) -> State:
    """Say HELLO for runs of these names."""
    state = State()
    for run, session in sessions.items():
        entry = Entry(0, Opened(session, Hello(run=run, rank=0, world=1)))
        store.log.append([Line(entry)])
        state.apply(entry)
    return state


def records_of(store: SQLiteStore) -> Counter[bytes]:
    rows = store.db.execute(
        "SELECT session, count(*) FROM log WHERE kind = ? GROUP BY session", (int(Kind.STATS),)
    )
    return Counter(dict(rows))


@pytest.mark.slow
def test_a_noisy_run_pays_for_itself(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """S25: the records of the run that has most go, its oldest first; quiet runs keep theirs,
    although they are the oldest of all; over a restart, too."""
    monkeypatch.setattr(retention_module, "SLICE_BYTES", 1 << 20)
    state = state_with(store, noisy=NOISY, quiet=QUIET, third=THIRD)

    def send(session: bytes, first: int, count: int, layers: int) -> None:
        records = [stats_of(step, [1.0] * layers) for step in range(first, first + count)]
        store.log.append(
            [
                line(own, first + number, first + number, session)
                for number, own in enumerate(records)
            ]
        )

    send(QUIET, 0, 300, 100)
    for number in range(20):
        send(NOISY, number * 50, 50, 1_500)
        send(THIRD, number * 5, 5, 1_000)
        trim(store, 0, store.log.last_offset, state, log_max_bytes=4_000_000)
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    kept = records_of(store)
    assert (kept[QUIET], kept[THIRD]) == (300, 100)
    assert 100 < kept[NOISY] < 500
    newest = store.db.execute(
        "SELECT received_ns FROM log WHERE session = ? AND kind = ? ORDER BY log_offset",
        (NOISY, int(Kind.STATS)),
    ).fetchall()
    assert newest == [(step,) for step in range(1_000 - len(newest), 1_000)]
    assert store.used_bytes() < 5_500_000


def test_runs_that_are_all_as_large_lose_as_much(store: SQLiteStore) -> None:
    """The oldest of each."""
    state = state_with(store, noisy=NOISY, quiet=QUIET)
    for step in range(400):
        lines = [line(stats_of(step, [1.0] * 1_000), step, step, own) for own in (NOISY, QUIET)]
        store.log.append(lines)
    trim(store, 0, store.log.last_offset, state, log_max_bytes=3_000_000)

    kept = records_of(store)
    assert 100 < kept[NOISY] < 250
    assert abs(kept[NOISY] - kept[QUIET]) <= 2


def test_what_is_of_no_run_in_memory_is_trimmed_too(store: SQLiteStore) -> None:
    """Records of runs that were forgotten since they were counted."""
    state = state_with(store, noisy=NOISY)
    store.log.append([line(stats_of(n, [1.0] * 1_000), n, n, NOISY) for n in range(700)])
    trim(store, 0, store.log.last_offset, state, log_max_bytes=5_000_000)
    before = records_of(store)[NOISY]
    assert 300 < before < 650
    trim(store, 0, store.log.last_offset, State(), log_max_bytes=3_000_000)

    assert 100 < records_of(store)[NOISY] < before - 100


@pytest.mark.slow
def test_what_sessions_said_first_goes_once_they_are_gone(store: SQLiteStore) -> None:
    state = state_with(store, quiet=QUIET)
    opened = Opened(NOISY, Hello(run="r" * 100, rank=0, world=1, versions={"v": "x" * 400}))
    for _ in range(10):
        store.log.append([Line(Entry(0, opened))] * 1_000)
    store.log.append([Line(Entry(0, RulesSet({})))])
    trim(store, 0, store.log.last_offset, state, log_max_bytes=2_000_000)

    left = kept(store)
    assert (left[0], left[-1]) == (1, 10_002)
    assert 1_000 < len(left) < 5_000
    assert store.used_bytes() < 3_500_000


@pytest.mark.slow
def test_alert_events_have_a_size_of_their_own(store: SQLiteStore) -> None:
    """S25: those of the run that has most go, and no record for them."""
    state = state_with(store, noisy=NOISY, quiet=QUIET)
    store.log.append([line(stats_of(n, [1.0] * 100), n, n, QUIET) for n in range(300)])
    quiet = [NewAlertEvent(f"q{n}", "firing", "quiet", "{}") for n in range(50)]
    store.alert_events.add(quiet)
    for number in range(30):
        body = f'{{"x": "{"x" * 20_000}"}}'
        noisy = [NewAlertEvent(f"{number} {n}", "firing", "noisy", body) for n in range(20)]
        store.alert_events.add(noisy)
        trim(
            *(store, 0, store.log.last_offset, state),
            log_max_bytes=3_000_000,
            alerts_max_bytes=2_000_000,
        )

    assert records_of(store)[QUIET] == 300
    events = dict(store.db.execute("SELECT run, count(*) FROM alert_events GROUP BY run"))
    assert events["quiet"] == 50
    assert 50 < events["noisy"] <= 100
    assert store.alert_events.newest() == 650


def test_records_that_were_stamped_in_the_future_go_with_their_neighbours(
    store: SQLiteStore,
) -> None:
    """S48: a clock that was wrong for a while must not stop the trimming for good."""
    times = [1, 2, 4 * 10**9, 4 * 10**9, 3, 4 * 10**9, 400]
    store.log.append([line(stats_of(n, [1.0]), n, at * SECOND) for n, at in enumerate(times)])
    trim(store, 420 * SECOND, 7, log_max_age_s=60.0)

    assert kept(store) == [6, 7]


def test_the_usage_is_that_of_the_last_start_and_what_came_since(store: SQLiteStore) -> None:
    usages = {"log": Usage(7, {"a": 5, "": 1}), "alerts": Usage(3, {"b": 2})}
    body = encode_usage(usages)

    assert {name: decode_usage(body, name) for name in usages} == usages
    for broken in (None, b"", body[:-1], bytes([body[0] ^ 1]) + body[1:]):
        assert decode_usage(broken, "log") == Usage()
    assert decode_usage(body, "new") == Usage()


@pytest.mark.parametrize(
    ("sizes", "too_much", "excess"),
    [
        ({"a": 10, "b": 4, "c": 1}, 3, {"a": 3}),
        ({"a": 10, "b": 4, "c": 1}, 6, {"a": 6}),
        ({"a": 10, "b": 4, "c": 1}, 8, {"a": 7, "b": 1}),
        ({"a": 10, "b": 4, "c": 1}, 14, {"a": 10, "b": 4, "c": 1}),
        ({"a": 10, "b": 4, "c": 1}, 100, {"a": 10, "b": 4, "c": 1}),
        ({"a": 5, "b": 5}, 4, {"a": 2, "b": 2}),
        ({}, 5, {}),
    ],
)
def test_who_has_most_is_cut_first(
    sizes: dict[str, int], too_much: int, excess: dict[str, int]
) -> None:
    assert Usage(0, sizes).excess(too_much) == excess


def state_of(*bodies: Any) -> State:
    state = State()
    for second, body in enumerate(bodies):
        state.apply(Entry(second * SECOND, body))
    return state


def test_only_what_ended_long_ago_is_forgotten() -> None:
    """Attempts that were given up, and runs of which no rank is alive."""
    one, two = bytes(16), bytes([1] * 16)
    first = Opened(one, Hello(run="gpt", rank=0, world=1, job="1"))
    again = Opened(two, Hello(run="gpt", rank=0, world=1, job="2"))

    def gone(state: State, last_seen: dict[bytes, int] | None = None, now_s: int = 100) -> Any:
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
    start: Start, peers: NewPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "FORGET_NS", 0)
    running = start(session_timeout_s=1.0, retention=RetentionPolicy(runs_max_age_s=3.0))
    peer = peers(running.endpoint).attach()
    peer.steps(0, float("nan"))
    wait_until(lambda: "gpt" not in running.published.runs)
    peers(running.endpoint, run="next").attach()
    running.shows("next")
    assert set(running.published.last_seen) == {running.view("next").ranks[0].session}
    again = peers(running.endpoint).attach()
    again.steps(0, float("nan"))

    assert running.shows(frames=1).attempt == 2
    stored = running.store.alert_events.after(0)
    assert [(event.alert["rule"], event.alert["attempt"]) for event in stored] == [
        *(("nonfinite", 1), ("liveness", 1), ("nonfinite", 2)),
    ]
    running = start(endpoint=running.endpoint)
    assert (running.view().attempt, running.published.cursor) == (2, 3)
    # A session that was forgotten is told so, and says HELLO anew.
    assert peer.greet().acked == 0
