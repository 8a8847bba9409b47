"""Recovery: the state as the store has it, at the start of the engine."""

from __future__ import annotations

import logging

from gradwatch_server.budgets import LoggedBudgets
from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.alert import isotime
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import BudgetsSet, Entry, RulesSet
from gradwatch_server.engine.applier import Applier
from gradwatch_server.engine.published import PublishedState, Publisher
from gradwatch_server.engine.series_recorder import SeriesRecorder
from gradwatch_server.errors import GradwatchError
from gradwatch_server.storage.checkpointer import Checkpointer
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_server.storage.store import Line, StorageError, StorageFault, Store
from gradwatch_wire.health import RankState

logger = logging.getLogger(__name__)


def recover(
    store: Store,
    rules: Rules,
    budgets: LoggedBudgets,
    published: PublishedState,
    *,
    clock: Clock,
    retention: RetentionPolicy,
    window_steps: int,
    recorder: SeriesRecorder,
    publish_share: float = 1.0,
) -> Applier:
    """Read the newest checkpoint and the log after it; begin anew if the store is damaged.

    Raises:
        GradwatchError: If it cannot be read or written.
    """

    def read() -> Applier:
        checkpointer = Checkpointer(store, retention, clock)
        state = checkpointer.restore(window_steps)
        recorder.begin()
        state.record_with(recorder)
        publisher = Publisher(published, publish_share)
        applier = Applier(state, checkpointer, publisher, published, recorder)
        checkpointer.before_save = recorder.before_save
        published.cursor = _catch_up(applier, store, clock, rules, budgets)
        recorder.look(state)
        recorder.show()
        published.loss = store.find_loss()
        return applier

    try:
        try:
            applier = read()
        except StorageError as error:
            if error.fault is not StorageFault.DAMAGED:
                raise
            store.reset(error)
            applier = read()
    except StorageError as error:
        msg = f"cannot use the log {store.name}: {error}"
        raise GradwatchError(msg) from error
    if published.loss is not None:
        logger.error("%s", published.loss.text)
    _publish(applier, published, clock)
    return applier


def _catch_up(
    applier: Applier, store: Store, clock: Clock, rules: Rules, budgets: LoggedBudgets
) -> int:
    """Apply the log, of which the alerts are stored, and put what is in force into it.

    Returns:
        The cursor of the newest alert event.
    """
    for offset, entry, ahead in applier.checkpointer.tail(applier.state):
        applier.apply(entry, offset, ahead)
    in_force: list[RulesSet | BudgetsSet] = []
    if rules != applier.state.rules:
        in_force.append(RulesSet(rules.model_dump(mode="json")))
    if budgets != applier.state.budgets:
        in_force.append(BudgetsSet(budgets.model_dump(mode="json")))
    for body in in_force:
        entry = Entry(clock.now_ns(), body)
        store.log.append([Line(entry)])
        applier.apply(entry, store.log.last_offset)
    return store.alert_events.newest()


def _publish(applier: Applier, published: PublishedState, clock: Clock) -> None:
    sessions = applier.state.sessions.values()
    newest_ns = max((max(own.last_ns, own.heard_ns) for own in sessions), default=0)
    if not clock.catch_up(newest_ns):
        logger.warning(
            "the log has entries of %s, which the system's clock is far behind; times go on from "
            "%s, by the system's clock, and those of the entries stay",
            isotime(newest_ns),
            isotime(clock.now_ns()),
        )
    # While the aggregator was down no rank could reach it, which makes none of them lost.
    published.started_ns = now_ns = clock.now_ns()
    alive = (session.id for session in sessions if session.state is RankState.ALIVE)
    published.last_seen = dict.fromkeys(alive, now_ns)
    applier.publisher.note_changed(applier.state.runs)
    applier.publisher.publish(applier.state, now_ns, force=True)
