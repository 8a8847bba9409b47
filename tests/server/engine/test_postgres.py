"""The engine over a real PostgreSQL: nothing is lost while it is away, or over a restart."""

from __future__ import annotations

import math

import pytest

from tests.support.engine import Start, attached
from tests.support.postgres import PostgresServer
from tests.support.postgres_database import FreshDatabase
from tests.support.waiting import PATIENCE_S

_PIDS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"


def cut_off_all(database: FreshDatabase) -> None:
    database.cut_off([pid for (pid,) in database.execute(_PIDS)])


@pytest.mark.slow
def test_what_was_acknowledged_is_there_after_cuts_and_restarts(
    start: Start, postgres: PostgresServer
) -> None:
    database = FreshDatabase(postgres)
    open_store = database.open
    running, peer = attached(start(open_store=open_store))
    step = 0
    for _ in range(3):
        peer.steps(step, *[1.0] * 50)
        step += 50
        running.shows(frames=step)
        cut_off_all(database)
    peer.stats(step, (math.nan, 1.0))
    running.shows(frames=step + 1)
    events = running.events()
    assert [state for _, _, state in events] == ["firing"]

    running = start(open_store=open_store, endpoint=running.endpoint)

    view = running.shows(frames=step + 1)
    assert (view.stored, view.lost) == (step + 2, 0)
    assert running.events() == events
    with running.engine.curves.history("gpt", 1) as history:
        assert [(span.first, span.last) for span in history.spans()] == [(0, step)]


def test_an_aggregator_that_was_cut_off_writes_nothing_after_another_one(
    start: Start, postgres: PostgresServer
) -> None:
    database = FreshDatabase(postgres)
    open_store = database.open
    running, peer = attached(start(open_store=open_store))
    running.shows(stored=1)
    store = running.store
    # As another node does once the lease has run out.
    database.execute("UPDATE gradwatch.nodes SET holds = NULL, epoch = epoch + 1")
    open_store().close()
    peer.stats(0, (1.0, 1.0))

    assert running.failed.wait(PATIENCE_S)
    assert "another node has taken over postgresql://127.0.0.1" in str(running.published.fault)
    assert database.execute("SELECT count(*) FROM gradwatch.log WHERE is_head = 0") == [(0,)]
    assert store.log.last("gpt") > 0


def test_what_a_failover_lost_is_noticed(start: Start, postgres: PostgresServer) -> None:
    database = FreshDatabase(postgres)
    running, peer = attached(start(open_store=database.open))
    for step in range(3):
        peer.steps(step, 1.0)
        running.shows(frames=step + 1)
    newest = "SELECT id FROM gradwatch.log ORDER BY id DESC LIMIT 2"
    database.execute(f"DELETE FROM gradwatch.log WHERE id IN ({newest})")
    cut_off_all(database)
    peer.stats(3, (1.0, 1.0))

    assert running.failed.wait(PATIENCE_S)
    assert "has lost the newest 2 rows of the log" in str(running.published.fault)
    assert database.execute("SELECT count(*) FROM gradwatch.log WHERE is_head = 0") == [(1,)]
