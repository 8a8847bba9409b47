"""What every store keeps to, wherever it is: this suite runs over all `PLACES` of the conftest."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gradwatch_server.budgets import Budgets
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.silences import Silence
from gradwatch_server.core.entries import (
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
from gradwatch_server.storage.store import (
    PAGE_EVENTS,
    Line,
    NewAlertEvent,
    RunSave,
    StorageError,
    StorageFault,
    Store,
)
from gradwatch_wire import Bye, Column, Envelope, Event, Gains, Hello, Manifest, Record, encode
from gradwatch_wire.limits import MAX_SEQ, MAX_STEP
from tests.support.records import stats_of

SESSION, OTHER = bytes(range(16)), bytes(16)
HELLO = Hello(run="gpt", rank=1, world=2, host="node", pid=7, versions={"torch": "2"}, job="9/0")
MANIFEST = Manifest(
    manifest_id=1,
    names=("a", "é\0"),
    numel=Column.pack("<u8", [1, 2]),
    dtypes=("float32", "bfloat16"),
    groups={"g": (1,)},
    order="forward",
)
RECORDS: list[Record] = [
    MANIFEST,
    Gains(step=3, blocks=("x",), norm_type="l2", norms=Column.pack("<f8", [float("inf")])),
    Event(name="mark", step=4, data={"k": float("inf"), "n": None, "i": 1 << 63}),
    Bye(reason="exception"),
]

DAY_NS = 86_400 * 10**9
FAR_FUTURE_NS = 1 << 62


def received(record: Record, seq: int = 1, session: bytes = SESSION) -> Line:
    """Return the line of a record as it came, at the time *seq*."""
    envelope = Envelope(session=session, seq=seq, low=1, time_ns=5, record=record)
    return Line(Entry(seq, Received(envelope)), encode(envelope))


def opened(session: bytes = SESSION) -> Line:
    return Line(Entry(0, Opened(session, HELLO)))


def ticks(first_ns: int, count: int) -> list[Line]:
    return [Line(Entry(first_ns + number, Tick())) for number in range(count)]


def event(name: str, change: str = "firing", run: str = "gpt") -> NewAlertEvent:
    return NewAlertEvent(name, change, run, f'{{"id": "{name}", "value": "NaN"}}')


def run_save(run: str, attempt: int = 1, **changes: Any) -> RunSave:
    settings: dict[str, Any] = {"body": b"run", "attempts": {attempt: b"attempt"}}
    return RunSave(run=run, **settings | changes)


def offsets(store: Store) -> list[int]:
    return [offset for offset, _ in store.log.entries()]


def cursors(store: Store, *arguments: Any, **settings: Any) -> list[int]:
    return [own.cursor for own in store.alert_events.after(*arguments, **settings)]


def contents(store: Store) -> Any:
    """Return all that is kept, as it can be compared."""
    runs = [(name, store.state.run(name)) for name in store.state.runs()]
    parts = [store.state.part(name) for name in ("position", "forgotten")]
    return list(store.log.entries()), store.alert_events.after(0), parts, runs


# The log.


def test_every_kind_of_entry_is_read_back_as_it_was(store: Store) -> None:
    stats = stats_of(MAX_STEP, [5e-324, -0.0], loss=1e308)
    lines = [
        Line(Entry(1 << 62, Opened(SESSION, HELLO))),
        *(received(record, seq) for seq, record in enumerate([*RECORDS, stats], 1)),
        Line(Entry(6, Gap(SESSION, 7, MAX_SEQ))),
        Line(Entry(7, Lost(SESSION))),
        Line(Entry(8, Tick())),
        Line(Entry(9, RulesSet(Rules().model_dump(mode="json")))),
        Line(Entry(10, BudgetsSet(Budgets().logged().model_dump(mode="json")))),
        Line(Entry(11, Forgotten("gpt", 3))),
        Line(Entry(12, FramesClosed("gpt", 3, 1 << 40))),
        Line(Entry(13, ManifestsDropped(SESSION, 1 << 40))),
    ]
    store.log.append(lines)

    assert [entry for _, entry in store.log.entries()] == [line.entry for line in lines]


def test_entries_are_numbered_from_one_on_over_restarts(place: Any) -> None:
    store = place.open()
    assert (store.log.last_offset, offsets(store)) == (0, [])
    store.log.append(ticks(1, 2))
    store.close()
    store = place.open()
    assert store.log.last_offset == 2
    store.log.append(ticks(3, 1))

    assert offsets(store) == [1, 2, 3]
    assert list(store.log.entries(2)) == [(3, Entry(3, Tick()))]
    assert list(store.log.entries(3)) == []
    store.close()


def test_what_is_written_while_entries_are_read_disturbs_neither(store: Store) -> None:
    store.log.append(ticks(1, 50))
    seen = []
    for offset, _ in store.log.entries():
        seen.append(offset)
        if offset % 10 == 0:
            store.state.save({"position": bytes([offset])}, [])

    assert seen == list(range(1, 51))
    assert store.state.part("position") == bytes([50])


def test_places_that_a_checkpoint_stands_for_are_not_given_again(place: Any) -> None:
    """A number that was used twice would hide a record that the checkpoint seems to have."""
    store = place.open()
    store.log.append(ticks(1, 5))
    store.log.trim(0, 5)
    assert (offsets(store), store.log.last_offset) == ([], 5)
    store.close()
    store = place.open()
    store.log.skip_to(5)
    store.log.append(ticks(6, 1))
    store.log.skip_to(2)

    assert (offsets(store), store.log.last_offset) == ([6], 6)
    store.close()


def test_trimming_keeps_what_the_rest_is_read_with(store: Store) -> None:
    """HELLO, manifest, rules, budgets and silences stay, and all that is outside the range."""
    rules = [Line(Entry(0, RulesSet({}))), Line(Entry(0, BudgetsSet({})))]
    silence = Silence("5f", "gpt", "*", "*", 9, 0, "ada", "")
    silences = [Line(Entry(0, body)) for body in (SilenceAdded(silence), SilenceRemoved("5f"))]
    stats = [received(stats_of(step, [1.0]), step + 2) for step in range(6)]
    store.log.append([opened(), received(MANIFEST), *rules, *silences, *stats])
    store.log.trim(0, 9)
    assert offsets(store) == [1, 2, 3, 4, 5, 6, 10, 11, 12]

    store.log.trim(10, 11)
    assert offsets(store) == [1, 2, 3, 4, 5, 6, 10, 12]


def test_sizes_are_those_of_a_range(store: Store) -> None:
    stats = [received(stats_of(step, [1.0] * 1_000), step + 1) for step in range(6)]
    store.log.append(stats)
    sizes = list(store.log.sizes(1, 5, 3))

    assert [(size.offset, size.received_ns) for size in sizes] == [(2, 2), (3, 3), (4, 4)]
    assert all(8_000 <= size.num_bytes < 10_000 for size in sizes)
    assert [size.offset for size in store.log.sizes(1, 3, 9)] == [2, 3]
    assert list(store.log.sizes(6, 9, 9)) == []


def test_sessions_that_left_memory_are_trimmed(store: Store) -> None:
    other = received(MANIFEST, 1, OTHER)
    store.log.append([opened(), received(MANIFEST), opened(OTHER), other, opened()])
    many = [number.to_bytes(16, "big") for number in range(1, 1_200)]
    store.log.trim_sessions([*many, SESSION], 4)

    assert offsets(store) == [3, 4, 5]


def test_space_is_counted(store: Store) -> None:
    before = store.used_bytes()
    stats = [received(stats_of(step, [1.0] * 1_000), step + 1) for step in range(200)]
    store.log.append(stats)
    full = store.used_bytes()
    store.log.trim(0, 200)
    while store.vacuum(1 << 20):
        pass

    assert full > before + 1_500_000
    assert store.used_bytes() < before + 500_000


# Alert events.


def test_an_alert_event_is_stored_once(store: Store) -> None:
    """Derived again after a crash it keeps its cursor, and takes no number away."""
    first = [event("a"), event("a", "resolved")]
    assert store.alert_events.add([]) == 0
    assert store.alert_events.add(first) == 2
    changed = NewAlertEvent("a", "firing", "gpt", '{"another": "body"}')

    assert store.alert_events.add([changed, *first, event("b")]) == 3
    stored = [(own.cursor, own.alert["id"]) for own in store.alert_events.after(0)]
    assert stored == [(1, "a"), (2, "a"), (3, "b")]


def test_alert_events_come_after_a_cursor_in_order(store: Store) -> None:
    """Oldest first, from the one after the cursor, at most a page."""
    assert (cursors(store, 0), store.alert_events.newest()) == ([], 0)
    store.alert_events.add([event(f"a{number}") for number in range(PAGE_EVENTS + 50)])

    assert cursors(store, 0) == list(range(1, PAGE_EVENTS + 1))
    assert cursors(store, PAGE_EVENTS) == list(range(PAGE_EVENTS + 1, PAGE_EVENTS + 51))
    assert cursors(store, 7, most=2) == [8, 9]
    assert cursors(store, PAGE_EVENTS + 50) == cursors(store, 1 << 62) == []
    assert store.alert_events.newest() == PAGE_EVENTS + 50


def test_alert_events_of_one_run_keep_the_cursor_of_all(store: Store) -> None:
    """A cursor means the same in either stream."""
    runs = ["a", "b", "a", "b"]
    store.alert_events.add([event(f"x{number}", run=run) for number, run in enumerate(runs)])

    found = store.alert_events.after(0, "b")
    assert [(own.cursor, own.run) for own in found] == [(2, "b"), (4, "b")]
    assert found[0].alert == {"id": "x1", "value": "NaN"}
    assert cursors(store, 2, "b") == [4]
    assert cursors(store, 0, "c") == []


def test_layers_of_an_attempt_are_kept_as_they_were_saved(store: Store) -> None:
    """Curves without any have none."""
    assert store.series.layers("gpt", 1) == b""
    store.series.save("gpt", 1, [], b"names")
    store.series.save("gpt", 1, [])
    assert store.series.layers("gpt", 1) == b"names"
    assert store.series.layers("gpt", 2) == b""


def test_alert_events_of_one_state(store: Store) -> None:
    changes = ["firing", "firing:1", "resolved", "firing:critical", "firing_not"]
    store.alert_events.add([event("a", change) for change in changes])

    assert cursors(store, 0, state="firing") == [1, 2, 4]
    assert cursors(store, 1, state="firing", most=1) == [2]
    assert cursors(store, 0, state="resolved") == [3]
    assert cursors(store, 0, "no such", state="firing") == []


def test_old_alert_events_are_trimmed_but_never_the_newest(place: Any) -> None:
    store = place.open()
    assert not store.alert_events.trim(FAR_FUTURE_NS, 9)
    store.alert_events.add([event(f"a{number}") for number in range(5)])
    assert not store.alert_events.trim(DAY_NS, 9)  # a day after 1970
    assert store.alert_events.trim(FAR_FUTURE_NS, 3)
    assert cursors(store, 0) == [4, 5]
    assert store.alert_events.trim(FAR_FUTURE_NS, 3)
    assert not store.alert_events.trim(FAR_FUTURE_NS, 3)
    store.close()
    store = place.open()

    assert (cursors(store, 0), store.alert_events.newest()) == ([5], 5)
    assert store.alert_events.add([event("b")]) == 6
    store.close()


# The saved state.


def test_state_is_saved_and_found_again(place: Any) -> None:
    """Runs in the order in which they were first saved, whatever is saved of them later."""
    store = place.open()
    assert (store.state.part("position"), store.state.runs()) == (None, [])
    store.state.save({"position": b"1"}, [run_save("y"), run_save("x")])
    store.state.save({"forgotten": b"2"}, [run_save("y", body=b"new")])
    store.close()
    store = place.open()

    assert (store.state.part("position"), store.state.part("forgotten")) == (b"1", b"2")
    assert store.state.runs() == ["y", "x"]
    saved = store.state.run("y")
    assert (saved.body, dict(saved.attempts)) == (b"new", {1: b"attempt"})
    store.close()


def test_only_what_changed_of_a_run_is_replaced(store: Store) -> None:
    """Attempts that are not named stay, unless they are too old or all are to go."""
    store.state.save({}, [run_save("x", 1), run_save("y", 1)])
    store.state.save({}, [run_save("x", 2), run_save("x", 3)])
    assert dict(store.state.run("x").attempts) == dict.fromkeys((1, 2, 3), b"attempt")

    store.state.save({}, [run_save("x", 3, first_attempt=2)])
    assert list(store.state.run("x").attempts) == [2, 3]
    store.state.save({}, [run_save("x", 4, whole=True)])
    assert list(store.state.run("x").attempts) == [4]
    assert list(store.state.run("y").attempts) == [1]


def test_a_run_that_left_memory_is_removed(store: Store) -> None:
    store.state.save({}, [run_save("x"), run_save("y")])
    store.state.save({}, [RunSave(run="x")])
    assert store.state.runs() == ["y"]

    store.state.save({}, [run_save("x", 2)])
    assert store.state.runs() == ["y", "x"]
    assert list(store.state.run("x").attempts) == [2]


def test_what_a_run_save_writes_is_counted() -> None:
    assert run_save("x").num_bytes == len(b"run" + b"attempt")
    assert RunSave(run="x").num_bytes == 0


# Crashes.

CALLS: list[Callable[[Store], object]] = [
    lambda store: store.log.append([opened(), received(MANIFEST), *ticks(1, 3)]),
    lambda store: store.alert_events.add([event("a"), event("b")]),
    lambda store: store.state.save({"position": b"1"}, [run_save("x"), run_save("y")]),
    lambda store: store.log.append(ticks(4, 2)),
    lambda store: store.log.trim(0, 4),
    lambda store: store.alert_events.add([event("a", "resolved")]),
    lambda store: store.state.save(
        {"position": b"2", "forgotten": b"y"},
        [run_save("x", 2, first_attempt=2), RunSave(run="y")],
    ),
    lambda store: store.alert_events.trim(FAR_FUTURE_NS, 2),
    lambda store: store.log.trim_sessions([SESSION], 5),
    lambda store: store.log.append(ticks(6, 1)),
]


@pytest.mark.slow
def test_a_crash_anywhere_leaves_all_or_nothing_of_a_call(
    make_place: Any, stopped: type[BaseException]
) -> None:
    """A call that returned is done; the one in hand is done or was never begun."""
    place = make_place()
    store = place.open()
    stories = [contents(store)]
    for call in CALLS:
        call(store)
        stories.append(contents(store))
    store.close()
    assert all(before != after for before, after in itertools.pairwise(stories))

    for write in itertools.count():
        place, num_done = make_place(), 0
        store = place.open()
        place.stop_at(store, write)
        try:
            for call in CALLS:
                call(store)
                num_done += 1
        except stopped:
            pass
        place.kill(store)
        store = place.open()
        assert contents(store) in stories[num_done : num_done + 2], (write, num_done)
        # It goes on from there as if nothing had happened.
        last = store.log.last_offset
        store.log.append(ticks(99, 1))
        assert offsets(store)[-1] == store.log.last_offset == last + 1
        store.close()
        if num_done == len(CALLS):
            break
    assert write > 3 * len(CALLS)  # a beginning, a write and a commit of each were cut off


def test_what_was_committed_survives_a_kill(place: Any) -> None:
    store = place.open()
    for call in CALLS:
        call(store)
    before = contents(store)
    place.kill(store)
    store = place.open()

    assert contents(store) == before
    store.close()


# Full disks.


def test_a_full_disk_fails_and_changes_nothing(place: Any, store: Store) -> None:
    store.log.append([opened()])
    store.alert_events.add([event("a")])
    store.state.save({"position": b"1"}, [run_save("x")])
    before = contents(store)
    large = bytes(300_000)
    lines = [received(stats_of(step, [1.0] * 4_000), step + 1) for step in range(20)]
    events = [NewAlertEvent(f"b{i}", "firing", "gpt", f'"{"x" * 90_000}"') for i in range(9)]
    writes: list[Callable[[], object]] = [
        lambda: store.log.append(lines),
        lambda: store.alert_events.add(events),
        lambda: store.state.save({"position": large}, [run_save("x", body=large)]),
    ]
    place.fill(store)
    for write in [*writes, *writes]:
        with pytest.raises(StorageError, match="full") as caught:
            write()
        assert caught.value.fault is StorageFault.FULL
        assert contents(store) == before
    place.make_room(store)
    for write in writes:
        write()

    assert offsets(store) == list(range(1, 22))
    assert (store.alert_events.newest(), store.state.part("position")) == (10, large)


def test_what_one_transaction_writes_is_there_together_or_not_at_all(
    place: Any, store: Store
) -> None:
    events = [NewAlertEvent(f"b{i}", "firing", "gpt", f'"{"x" * 90_000}"') for i in range(9)]

    def write() -> int:
        with store.transaction():
            store.log.append(ticks(1, 3))
            return store.alert_events.add(events)

    before = contents(store)
    place.fill(store)
    for _ in range(2):
        with pytest.raises(StorageError, match="full"):
            write()
        assert contents(store) == before
        assert store.log.last_offset == 0
    place.make_room(store)

    assert write() == 9
    assert offsets(store) == [1, 2, 3]


# Damage.


def test_damage_costs_what_cannot_be_read(place: Any) -> None:
    """S43: all else is there, what is missing is told, and no place is given again."""
    store = place.open()
    assert store.find_loss() is None
    store.log.append([received(stats_of(step, [1.0] * 500), step + 1) for step in range(200)])
    store.check()
    before = dict(store.log.entries())
    place.damage(store)
    damaged = place.open()
    loss = damaged.find_loss()

    left = dict(damaged.log.entries())
    assert 150 < len(left) < 200
    assert left.items() <= before.items()
    assert loss is not None
    damaged.log.append(ticks(1, 2))
    assert damaged.log.last_offset == max(left) + 2
    damaged.close()


# One writer.


def test_a_second_writer_is_refused(place: Any, store: Store) -> None:
    if not place.is_exclusive:
        pytest.skip("memory belongs to one process")
    for _ in range(2):
        with pytest.raises(StorageError) as caught:
            place.open()
        assert caught.value.fault is StorageFault.LOCKED
        assert "\n" not in str(caught.value)
    store.log.append(ticks(1, 1))
    store.close()
    again = place.open()

    assert offsets(again) == [1]
    again.close()


@pytest.mark.slow
def test_readers_see_at_once_what_is_committed(place: Any, store: Store) -> None:
    if not place.has_readers:
        pytest.skip("memory has one connection, for one thread")
    errors: list[Exception] = []
    seen: list[list[int]] = [[] for _ in range(3)]

    def follow(found: list[int]) -> None:
        try:
            while len(found) < 30:
                found += cursors(store, len(found))
        except Exception as error:  # noqa: BLE001 - told in the test's own thread
            errors.append(error)

    readers = [threading.Thread(target=follow, args=(found,)) for found in seen]
    for reader in readers:
        reader.start()
    for number in range(30):
        store.alert_events.add([event(f"a{number}")])
        assert store.alert_events.newest() == number + 1
    for reader in readers:
        reader.join(30)

    assert errors == []
    assert seen == [list(range(1, 31))] * 3
