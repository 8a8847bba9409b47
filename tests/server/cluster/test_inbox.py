"""The inbox of a partition: engines of one node take turns, and are woken."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.budgets import Budgets
from gradwatch_server.clock import Clock
from gradwatch_server.cluster.messages.inbox import ClusterInbox
from gradwatch_server.cluster.messages.parcels import Answer, Parcel
from gradwatch_server.cluster.messages.turns import Turn, Turns
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.engine.commands import Outcome
from gradwatch_server.engine.engine import Engine
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_wire import Envelope, encode
from gradwatch_wire.records import Beat
from tests.support.waiting import PATIENCE_S, wait_until

POLL_MS = 600_000
OTHER_RULES = Rules.model_validate({"records_lost": {"enabled": False}})


class Post:
    """Takes answers."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def is_live(self, node: str) -> bool:
        return node == "a"

    def post(self, node: str, answer: Answer) -> None:
        assert node == "a"
        self.answers.append(answer)

    def flush(self) -> None:
        """Do nothing: they are there."""


def beat(number: int) -> Parcel:
    """Return a BEAT of a session that nobody knows, which is answered."""
    envelope = Envelope(session=bytes([number]) * 16, record=Beat(last_step=number))
    return Parcel(b"peer", encode(envelope))


@pytest.fixture
def turns() -> Turns:
    return Turns(hold_s=PATIENCE_S)


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture
def inbox(turns: Turns, post: Post) -> ClusterInbox:
    return ClusterInbox("tcp://127.0.0.1:1", BudgetUse(Budgets()), post, turns)


@pytest.fixture
def engine(inbox: ClusterInbox, tmp_path: Path) -> Iterator[Engine]:
    """An engine that looks by itself every ten minutes."""
    store = SQLiteStore.open(tmp_path / "data", Clock())
    own = Engine(
        store,
        inbox,
        Rules(),
        clock=Clock(),
        window_steps=16,
        session_timeout_s=30.0,
        on_alerts=lambda: None,
        on_failure=lambda: None,
        poll_ms=POLL_MS,
    )
    own.start()
    yield own
    own.stop()
    store.close()


def test_what_comes_while_another_engine_works_is_in_the_same_batch(
    inbox: ClusterInbox, turns: Turns
) -> None:
    other = Turn(turns)
    other.begin()
    batch: list[int] = []

    def receive() -> None:
        batch.extend(message.envelope.session[0] for message in inbox.receive(POLL_MS))

    thread = threading.Thread(target=receive)
    thread.start()
    inbox.put("a", [beat(1)])
    wait_until(lambda: len(turns._waiting) == 1, "it waits for its turn")
    inbox.put("a", [beat(2), beat(3)])
    other.end()
    thread.join()
    assert batch == [1, 2, 3]
    assert turns._current is inbox._turn
    inbox.rest()
    assert turns._current is None


def test_one_that_waits_for_messages_has_no_turn(inbox: ClusterInbox, turns: Turns) -> None:
    assert list(inbox.receive(1)) == []
    assert turns._current is None


def test_an_engine_that_looks_rarely_takes_messages_commands_and_its_end_at_once(
    engine: Engine, inbox: ClusterInbox, post: Post, turns: Turns
) -> None:
    began_s = time.monotonic()
    inbox.put("a", [beat(1)])
    wait_until(lambda: post.answers, "it is answered")
    done = engine.commands.submit(lambda _state, _now_ns: Outcome(lambda _state: "done"))
    assert done.result(PATIENCE_S) == "done"
    engine.set_rules(OTHER_RULES)
    wait_until(lambda: engine.published.rules == OTHER_RULES, "rules are in force")
    engine.stop()
    assert time.monotonic() - began_s < POLL_MS / 1e3
    assert turns._current is None


def test_an_engine_that_waits_for_the_log_lets_others_work(
    engine: Engine, inbox: ClusterInbox, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_writing, go_on = threading.Event(), threading.Event()
    append = engine._store.log.append

    def hang(lines: object) -> None:
        is_writing.set()
        assert go_on.wait(PATIENCE_S)
        append(lines)  # type: ignore[arg-type]

    monkeypatch.setattr(engine._store.log, "append", hang)
    engine.set_rules(OTHER_RULES)
    inbox.put("a", [beat(1)])
    assert is_writing.wait(PATIENCE_S)
    other = Turn(turns)
    other.begin()  # at once: it would wait for `PATIENCE_S`
    other.end()
    go_on.set()
    wait_until(lambda: engine.published.rules == OTHER_RULES, "rules are in force")
