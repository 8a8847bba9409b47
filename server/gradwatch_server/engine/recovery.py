"""Recovery: the state as the store has it, at the start of the engine."""

from __future__ import annotations

import logging
from typing import Final

from gradwatch_server.budgets import LoggedBudgets
from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.alert import isotime
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.silences import Silences
from gradwatch_server.core.entries import BudgetsSet, Entry, RulesSet
from gradwatch_server.core.state import State
from gradwatch_server.core.state_codec import decode, encode
from gradwatch_server.engine.applier import Applier
from gradwatch_server.engine.curve_recorder import CurveRecorder
from gradwatch_server.engine.published import PublishedState, Publisher
from gradwatch_server.errors import GradwatchError
from gradwatch_server.storage.checkpointer import Checkpointer
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_server.storage.rows import Line, StorageError, StorageFault
from gradwatch_server.storage.store import Store
from gradwatch_wire.health import RankState

logger = logging.getLogger(__name__)

WRITTEN_ENTRIES: Final = 256
"""Entries after which blocks of curves are written, which a whole log would fill memory with."""

_SILENCES = "silences"


def recover(
    store: Store,
    rules: Rules,
    budgets: LoggedBudgets,
    published: PublishedState,
    *,
    clock: Clock,
    retention: RetentionPolicy,
    window_steps: int,
    recorder: CurveRecorder,
) -> Applier:
    """Read the checkpoints and the logs after them; begin anew if the store is damaged.

    Raises:
        GradwatchError: If it cannot be read or written.
    """

    def read() -> Applier:
        state = State(window_steps, rules)
        state.budgets, state.recorder = budgets, recorder
        _read_silences(store, state)
        checkpointer = Checkpointer(store, retention, clock)
        recorder.begin()
        publisher = Publisher(published)
        applier = Applier(state, checkpointer, publisher, published, recorder)
        for count, (name, number, entry) in enumerate(checkpointer.restore(state), 1):
            applier.apply(name, entry, number)
            if count % WRITTEN_ENTRIES == 0:
                with store.transaction():
                    recorder.write()
                recorder.committed()
        _put_in_force(applier, store, recorder, clock)
        published.cursor = store.alert_events.newest()
        recorder.look(state)
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


def _read_silences(store: Store, state: State) -> None:
    body = store.state.part(_SILENCES)
    try:
        state.silences = Silences() if body is None else decode(body, Silences)
    except ValueError as error:
        logger.warning("the silences cannot be read: %s", error)


def write_silences(store: Store, silences: Silences) -> None:
    """Keep the silences over restarts.

    Raises:
        StorageError: If the disk is full or fails.
    """
    store.state.save({_SILENCES: encode(silences)}, [])


def _put_in_force(applier: Applier, store: Store, recorder: CurveRecorder, clock: Clock) -> None:
    """Put rules and budgets into the log of each run that has others, and keep what left memory."""
    state, now_ns = applier.state, clock.now_ns()
    rules = RulesSet(state.rules.model_dump(mode="json"))
    budgets = BudgetsSet(state.budgets.model_dump(mode="json"))
    lines: list[Line] = []
    for name, run in state.runs.items():
        if run.rules != state.rules:
            lines.append(Line(name, Entry(now_ns, rules)))
        if run.budgets != state.budgets:
            lines.append(Line(name, Entry(now_ns, budgets)))
    with store.transaction():
        store.log.append(lines)
        recorder.write()
        applier.checkpointer.write_forgotten(now_ns)
    applier.checkpointer.committed()
    recorder.committed()
    for line in lines:
        applier.apply(line.run, line.entry, state.runs[line.run].position + 1)


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
