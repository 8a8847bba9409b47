"""Contract of every store: this suite runs over all `PLACES` of the conftest."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gradwatch_server.budgets import Budgets
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.silences import Silence
from gradwatch_server.core.entries import (
    Began,
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
from gradwatch_server.curves.facts import BlockFacts, SavedBlock
from gradwatch_server.storage.rows import (
    PAGE_EVENTS,
    ForgottenRun,
    LogEntry,
    NewAlertEvent,
    RunSave,
    StorageError,
    StorageFault,
)
from gradwatch_server.storage.store import Store
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


def received(record: Record, seq: int = 1, session: bytes = SESSION) -> LogEntry:
    """Return the line of a record as it came, at the time *seq*."""
    envelope = Envelope(session=session, seq=seq, low=1, time_ns=5, record=record)
    return LogEntry("gpt", Entry(seq, Received(envelope)), encode(envelope))


def opened(session: bytes = SESSION) -> LogEntry:
    return LogEntry("gpt", Entry(0, Opened(session, HELLO)))


def ticks(first_ns: int, count: int) -> list[LogEntry]:
    return [LogEntry("gpt", Entry(first_ns + number, Tick())) for number in range(count)]


def event(name: str, change: str = "firing", run: str = "gpt") -> NewAlertEvent:
    return NewAlertEvent(name, change, run, f'{{"id": "{name}", "value": "NaN"}}')


def run_save(run: str, attempt: int = 1, **changes: Any) -> RunSave:
    settings: dict[str, Any] = {"body": b"run", "attempts": {attempt: b"attempt"}}
    return RunSave(run=run, **settings | changes)


def attempts_of(store: Store, run: str) -> dict[int, bytes]:
    saved = store.state.run(run)
    return {} if saved is None else dict(saved.attempts)


def offsets(store: Store) -> list[int]:
    return [offset for offset, _ in store.log.entries("gpt")]


def cursors(store: Store, *arguments: Any, **settings: Any) -> list[int]:
    return [own.cursor for own in store.alert_events.after(*arguments, **settings)]


def contents(store: Store) -> Any:
    """Return all that is kept, as it can be compared."""
    runs = [(name, store.state.run(name)) for name in store.state.runs()]
    names = [store.state.part("silences"), store.state.forgotten("y")]
    return list(store.log.entries("gpt")), store.alert_events.after(0), names, runs


# The log.


def test_every_kind_of_entry_is_read_back_as_it_was(store: Store) -> None:
    stats = stats_of(MAX_STEP, [5e-324, -0.0], loss=1e308)
    lines = [
        LogEntry("gpt", Entry(1 << 62, Opened(SESSION, HELLO))),
        *(received(record, seq) for seq, record in enumerate([*RECORDS, stats], 1)),
        LogEntry("gpt", Entry(6, Gap(SESSION, 7, MAX_SEQ))),
        LogEntry("gpt", Entry(7, Lost(SESSION))),
        LogEntry("gpt", Entry(8, Tick())),
        LogEntry("gpt", Entry(8, Began(2, "{}", '{"y": 1}', ({"id": "5f"},)))),
        LogEntry("gpt", Entry(9, RulesSet(Rules().json_text))),
        LogEntry("gpt", Entry(10, BudgetsSet(Budgets().logged().model_dump_json()))),
        LogEntry("gpt", Entry(11, Forgotten("gpt", 3))),
        LogEntry("gpt", Entry(12, FramesClosed("gpt", 3, 1 << 40))),
        LogEntry("gpt", Entry(13, ManifestsDropped(SESSION, 1 << 40))),
    ]
    store.log.append(lines)

    assert [entry for _, entry in store.log.entries("gpt")] == [line.entry for line in lines]


def test_entries_are_numbered_from_one_on_over_restarts(place: Any) -> None:
    store = place.open()
    assert (store.log.last("gpt"), offsets(store)) == (0, [])
    store.log.append(ticks(1, 2))
    store.close()
    store = place.open()
    assert store.log.last("gpt") == 2
    store.log.append(ticks(3, 1))

    assert offsets(store) == [1, 2, 3]
    assert list(store.log.entries("gpt", 2)) == [(3, Entry(3, Tick()))]
    assert list(store.log.entries("gpt", 3)) == []
    store.close()


def test_what_is_written_while_entries_are_read_disturbs_neither(store: Store) -> None:
    for number in range(50):
        store.log.append(ticks(number, 1))
    seen = []
    for number, _ in store.log.entries("gpt"):
        seen.append(number)
        if number % 10 == 0:
            store.state.save({"silences": bytes([number])}, [])

    assert seen == list(range(1, 51))
    assert store.state.part("silences") == bytes([50])


def test_each_run_has_numbers_of_its_own(store: Store) -> None:
    """Entries of several runs that are committed together do not mix."""
    other = [LogEntry("other", tick.entry) for tick in ticks(1, 2)]
    mixed = [*ticks(1, 1), other[0], opened(), *ticks(2, 1), other[1], received(MANIFEST)]
    store.log.append(mixed)
    store.log.append(ticks(3, 1))

    own = [line.entry for line in mixed if line.run == "gpt"]
    assert list(store.log.entries("gpt")) == [*enumerate(own, 1), (5, Entry(3, Tick()))]
    assert list(store.log.entries("other")) == [(1, Entry(1, Tick())), (2, Entry(2, Tick()))]
    assert store.log.runs() == ["gpt", "other"]
    assert (store.log.last("gpt"), store.log.last("other"), store.log.last("none")) == (5, 2, 0)


def test_numbers_that_a_checkpoint_stands_for_are_not_given_again(place: Any) -> None:
    """A number that was used twice would hide a record that the checkpoint seems to have."""
    store = place.open()
    store.log.append(ticks(1, 5))
    store.log.trim("gpt", 5, 1 << 30, 10)
    assert (offsets(store), store.log.last("gpt")) == ([], 5)
    store.close()
    store = place.open()
    store.log.skip_to("gpt", 5)
    store.log.append(ticks(6, 1))

    assert (offsets(store), store.log.last("gpt")) == ([6], 6)
    store.close()


def test_the_name_of_a_run_that_left_memory_is_kept(place: Any) -> None:
    store = place.open()
    store.state.save({}, [run_save("gpt")])
    store.state.forget("gpt", ForgottenRun(7, 3), 10)
    store.close()
    store = place.open()

    assert (store.state.runs(), store.state.run("gpt")) == ({}, None)
    assert store.state.forgotten("gpt") == ForgottenRun(7, 3)
    assert store.state.forgotten("other") == ForgottenRun()
    assert store.log.last("gpt") == 7
    store.state.trim_forgotten(10)
    assert store.state.forgotten("gpt").attempts == 3
    store.state.trim_forgotten(11)
    assert store.state.forgotten("gpt") == ForgottenRun()
    store.close()


def test_trimming_keeps_what_the_rest_is_read_with(store: Store) -> None:
    """Beginning, HELLO, manifest, rules, budgets and silences stay."""
    began = LogEntry("gpt", Entry(0, Began(0, "{}", "{}")))
    rules = [LogEntry("gpt", Entry(0, RulesSet("{}"))), LogEntry("gpt", Entry(0, BudgetsSet("{}")))]
    silence = Silence("5f", "gpt", "*", "*", 9, 0, "ada", "")
    bodies = (SilenceAdded(silence), SilenceRemoved("5f"))
    silences = [LogEntry("gpt", Entry(0, body)) for body in bodies]
    store.log.append([began, opened(), received(MANIFEST), *rules, *silences])
    for step in range(6):
        store.log.append([received(stats_of(step, [1.0]), step + 2)])
    heads = list(range(1, 8))
    assert store.log.trim("gpt", 10, 1 << 30, 9) > 0
    assert offsets(store) == [*heads, 11, 12, 13]

    assert store.log.trim("gpt", 13, 1, 9) > 0  # the oldest
    assert offsets(store) == [*heads, 12, 13]
    (row, _) = store.log.oldest(0, 9)
    assert (row.run, row.last) == ("gpt", 12)
    assert store.log.sizes() == {"gpt": sum(own.num_bytes for own in store.log.oldest(0, 9))}
    store.log.delete([row.number])
    assert offsets(store) == [*heads, 13]


def test_heads_go_once_nothing_is_read_with_them(store: Store) -> None:
    """Heads go of sessions that left memory, as far as rows are trimmed; all of a run that did."""
    store.log.append([LogEntry("gpt", Entry(0, Began(0, "{}", "{}")))])
    store.log.append([opened(), received(MANIFEST)])
    store.log.append(ticks(1, 1))
    store.log.append([opened(OTHER), received(MANIFEST, 1, OTHER)])
    store.log.append(ticks(2, 1))
    store.log.trim_heads("gpt", [OTHER])
    assert offsets(store) == [1, 4, 5, 6, 7]
    store.log.trim_heads("gpt", [])
    assert offsets(store) == [1, 4, 5, 6, 7]
    store.log.trim("gpt", 4, 1, 9)
    store.log.trim_heads("gpt", [])
    assert offsets(store) == [1, 7]
    store.log.trim("gpt", 7, 1 << 30, 9)
    store.log.trim_heads("gpt", None)
    assert offsets(store) == []


def test_a_run_is_removed_with_its_heads(store: Store) -> None:
    store.log.append([opened(), *ticks(1, 2), LogEntry("other", Entry(1, Tick()))])
    store.log.append([received(MANIFEST)])
    assert store.log.remove("gpt", 3, 9)
    assert not store.log.remove("gpt", 3, 9)

    assert offsets(store) == [4]
    assert [number for number, _ in store.log.entries("other")] == [1]


def test_space_is_counted(store: Store) -> None:
    before = store.used_bytes()
    noise = random.Random(0)
    for step in range(200):
        numbers = [noise.random() for _ in range(1_000)]
        store.log.append([received(stats_of(step, numbers), step + 1)])
    full = store.used_bytes()
    store.log.trim("gpt", 200, 1 << 30, 300)
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
    assert cursors(store, 7, limit=2) == [8, 9]
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
    assert store.curves.stored("gpt", 1).layers() == b""
    store.curves.save("gpt", 1, [], b"names")
    store.curves.save("gpt", 1, [])
    assert store.curves.stored("gpt", 1).layers() == b"names"
    assert store.curves.stored("gpt", 2).layers() == b""


def test_alert_events_of_one_state(store: Store) -> None:
    changes = ["firing", "firing:1", "resolved", "firing:critical", "firing_not"]
    store.alert_events.add([event("a", change) for change in changes])

    assert cursors(store, 0, state="firing") == [1, 2, 4]
    assert cursors(store, 1, state="firing", limit=1) == [2]
    assert cursors(store, 0, state="resolved") == [3]
    assert cursors(store, 0, "no such", state="firing") == []


def test_the_newest_event_of_each_alert_comes_newest_first(store: Store) -> None:
    changes = [("a", "firing"), ("b", "firing"), ("a", "resolved"), ("c", "firing:1")]
    store.alert_events.add([event(own, change) for own, change in changes])

    def latest(before: int = 99, *arguments: Any) -> list[int]:
        return [own.cursor for own in store.alert_events.latest(before, *arguments)]

    assert latest() == [4, 3, 2]
    assert latest(4) == [3, 2]
    assert latest(3) == [2]  # not the older event of an alert that has a newer one
    assert latest(99, None, 1) == [4]
    assert latest(99, None, 9, "firing") == [4, 2]
    assert latest(99, None, 9, "resolved") == [3]
    assert latest(99, "no such") == []


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
    assert (store.state.part("silences"), store.state.runs()) == (None, {})
    store.state.save({"silences": b"1"}, [run_save("y"), run_save("x")])
    store.state.save({"forgotten": b"2"}, [run_save("y", body=b"new")])
    store.close()
    store = place.open()

    assert (store.state.part("silences"), store.state.part("forgotten")) == (b"1", b"2")
    assert store.state.runs() == {"x": None, "y": None}
    saved = store.state.run("y")
    assert (saved.body, dict(saved.attempts)) == (b"new", {1: b"attempt"})
    store.close()


def test_only_what_changed_of_a_run_is_replaced(store: Store) -> None:
    """Attempts that are not named stay, unless they are too old or all are to go."""
    store.state.save({}, [run_save("x", 1), run_save("y", 1)])
    store.state.save({}, [run_save("x", 2), run_save("x", 3)])
    assert attempts_of(store, "x") == dict.fromkeys((1, 2, 3), b"attempt")

    store.state.save({}, [run_save("x", 3, first_attempt=2)])
    assert list(attempts_of(store, "x")) == [2, 3]
    store.state.save({}, [run_save("x", 4, whole=True)])
    assert list(attempts_of(store, "x")) == [4]
    assert list(attempts_of(store, "y")) == [1]


def test_a_run_that_left_memory_is_removed(store: Store) -> None:
    store.state.save({}, [run_save("x"), run_save("y")])
    store.state.save({}, [RunSave(run="x")])
    assert list(store.state.runs()) == ["y"]

    store.state.save({}, [run_save("x", 2)])
    assert store.state.runs() == {"x": None, "y": None}
    assert list(attempts_of(store, "x")) == [2]


def test_what_a_run_save_writes_is_counted() -> None:
    assert run_save("x").num_bytes == len(b"run" + b"attempt")
    assert RunSave(run="x").num_bytes == 0


# Crashes.

CALLS: list[Callable[[Store], object]] = [
    lambda store: store.log.append([opened(), received(MANIFEST), *ticks(1, 3)]),
    lambda store: store.alert_events.add([event("a"), event("b")]),
    lambda store: store.state.save({"silences": b"1"}, [run_save("x"), run_save("y")]),
    lambda store: store.log.append(ticks(4, 2)),
    lambda store: store.log.trim("gpt", 5, 1, 9),
    lambda store: store.alert_events.add([event("a", "resolved")]),
    lambda store: store.state.save(
        {"silences": b"2"}, [run_save("x", 2, first_attempt=2), RunSave(run="y")]
    ),
    lambda store: store.state.forget("y", ForgottenRun(3, 1), 5),
    lambda store: store.alert_events.trim(FAR_FUTURE_NS, 2),
    lambda store: store.log.trim_heads("gpt", None),
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
        last = store.log.last("gpt")
        store.log.append(ticks(99, 1))
        assert offsets(store)[-1] == store.log.last("gpt") == last + 1
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
    store.state.save({"silences": b"1"}, [run_save("x")])
    before = contents(store)
    large = random.Random(1).randbytes(300_000)
    noise = random.Random(0)
    norms = [[noise.random() for _ in range(4_000)] for _ in range(20)]
    lines = [received(stats_of(step, norm), step + 1) for step, norm in enumerate(norms)]
    events = [NewAlertEvent(f"b{i}", "firing", "gpt", f'"{"x" * 90_000}"') for i in range(9)]
    writes: list[Callable[[], object]] = [
        lambda: store.log.append(lines),
        lambda: store.alert_events.add(events),
        lambda: store.state.save({"silences": large}, [run_save("x", body=large)]),
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
    assert (store.alert_events.newest(), store.state.part("silences")) == (10, large)


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
        assert store.log.last("gpt") == 0
    place.make_room(store)

    assert write() == 9
    assert offsets(store) == [1, 2, 3]


def test_a_commit_whose_answer_was_lost_is_not_done_twice(store: Any) -> None:
    block = SavedBlock(BlockFacts(0, 0, 0, 0, 63, 64), b"head", b"body")

    def write(first: int) -> int:
        with store.transaction():
            store.log.append(ticks(first, 3))
            store.state.save({"silences": b"1"}, [run_save("x")])
            store.curves.save("gpt", 1, [block])
            cursor: int = store.alert_events.add([event(f"a{first}")])
            return cursor

    assert write(1) == 1
    store.db.lost_answers = 2
    for _ in range(2):
        with pytest.raises(StorageError, match="lost"):
            write(4)
    assert write(4) == 2
    assert offsets(store) == [1, 2, 3, 4, 5, 6]
    assert cursors(store, 0) == [1, 2]
    assert store.curves.sizes() == [("gpt", 1, 8)]
    assert write(7) == 3


def test_a_write_that_fails_gives_no_number_that_was_trimmed_again(
    place: Any, store: Store
) -> None:
    """Nothing but the process knows by then that there was one."""
    store.log.append(ticks(1, 5))
    store.log.trim("gpt", 5, 1 << 30, 9)
    noise = random.Random(0)
    lines = [received(stats_of(9, [noise.random() for _ in range(100_000)]))]
    place.fill(store)
    for _ in range(2):
        with pytest.raises(StorageError, match="full"):
            store.log.append(lines)
        with pytest.raises(StorageError, match="full"), store.transaction():
            store.log.append(lines)
    with pytest.raises(ZeroDivisionError), store.transaction():
        raise ZeroDivisionError
    place.make_room(store)
    store.log.append(ticks(6, 1))

    assert offsets(store) == [6]


# Damage.


def test_damage_costs_what_cannot_be_read(place: Any) -> None:
    """S43: all else is there, what is missing is told, and no place is given again."""
    store = place.open()
    assert store.find_loss() is None
    noise = random.Random(0)
    for step in range(200):
        norms = [noise.random() for _ in range(500)]
        store.log.append([received(stats_of(step, norms), step + 1)])
    store.check()
    before = dict(store.log.entries("gpt"))
    place.damage(store)
    damaged = place.open()
    loss = damaged.find_loss()

    left = dict(damaged.log.entries("gpt"))
    assert 150 < len(left) < 200
    assert left.items() <= before.items()
    assert loss is not None
    damaged.log.append(ticks(1, 2))
    assert damaged.log.last("gpt") in (max(left) + 2, 202)
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
