"""Commands: what people ask of the engine over HTTP, answered once it is in the log.

Any thread puts them into a bounded queue; the engine takes them in its round. What a command comes
to is decided against the state as it then is, and becomes entries of the log like all else.
"""

from __future__ import annotations

import logging
import queue
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.silences import fits
from gradwatch_server.core.entries import (
    Acknowledged,
    Forgotten,
    RulesSet,
    SilenceAdded,
    SilenceRemoved,
)
from gradwatch_server.core.state import State
from gradwatch_server.engine.batch import Batch

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 64
"""Commands that may wait: the engine takes all of them twenty times a second."""


class CommandError(Exception):
    """A command cannot be done."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


Asked: TypeAlias = Acknowledged | Forgotten | SilenceAdded | SilenceRemoved
"""Entries that a command puts into the log."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a command.

    Args:
        answer: What is answered once the bodies are applied.
        bodies: What goes into the log; nothing if all is as was asked for already.
    """

    answer: Callable[[State], Any]
    bodies: tuple[Asked, ...] = ()


Command = Callable[[State, int], CommandResult]
"""Looks at the state and the time, nanoseconds since the epoch; raises `CommandError`."""


@dataclass(slots=True)
class _Waiting:
    command: Command
    future: Future[Any]


@dataclass(slots=True)
class Commands:
    """Commands that wait, and commands that are accepted and not committed yet."""

    _waiting: queue.Queue[_Waiting] = field(
        default_factory=lambda: queue.Queue(maxsize=MAX_WAITING)
    )
    _taken: list[tuple[Future[Any], CommandResult]] = field(default_factory=list)
    _closed: bool = False

    @property
    def are_waiting(self) -> bool:
        """True while a command waits for a round."""
        return not self._waiting.empty()

    def submit(self, command: Command) -> Future[Any]:
        """Return what will have the answer, from any thread.

        It fails with a `CommandError`, at once if too many wait.
        """
        future: Future[Any] = Future()
        if self._closed:
            future.set_exception(CommandError(503, "the aggregator stops"))
            return future
        try:
            self._waiting.put_nowait(_Waiting(command, future))
        except queue.Full:
            detail = f"{MAX_WAITING} other requests wait for the engine; try again"
            future.set_exception(CommandError(503, detail))
        if self._closed:  # in between
            self.close()
        return future

    def decide(self, state: State, now_ns: int, batch: Batch) -> None:
        """Decide what the waiting ones come to, and put it into the batch."""
        for _ in range(MAX_WAITING):
            try:
                waiting = self._waiting.get_nowait()
            except queue.Empty:
                return
            if not waiting.future.set_running_or_notify_cancel():
                continue
            try:
                outcome = waiting.command(state, now_ns)
            except Exception as error:  # noqa: BLE001 - it is the asker's, not the engine's
                waiting.future.set_exception(error)
                continue
            for body in outcome.bodies:
                _put(body, state, now_ns, batch)
            self._taken.append((waiting.future, outcome))

    def answer(self, state: State) -> None:
        """Answer those that were taken: what they put into the log is applied."""
        taken, self._taken = self._taken, []
        for future, outcome in taken:
            try:
                future.set_result(outcome.answer(state))
            except Exception as error:  # noqa: BLE001 - as above
                future.set_exception(error)

    def close(self) -> None:
        """Refuse all that is not answered, and what comes later."""
        self._closed = True
        stopped = CommandError(503, "the aggregator stops; it is not known whether this was done")
        taken, self._taken = self._taken, []
        for future, _ in taken:
            future.set_exception(stopped)
        while True:
            try:
                waiting = self._waiting.get_nowait()
            except queue.Empty:
                return
            if waiting.future.set_running_or_notify_cancel():
                waiting.future.set_exception(CommandError(503, "the aggregator stops"))


class NewRules:
    """Rules that are to be in force from the next round on."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._given: deque[Rules] = deque(maxlen=1)

    def give(self, rules: Rules) -> None:
        """Put rules in force with the next round, from any thread."""
        self._given.append(rules)

    @property
    def are_given(self) -> bool:
        """True while new rules wait for a round."""
        return bool(self._given)

    def add(self, now_ns: int, batch: Batch) -> None:
        """Add the entries that put them in force, if they are other ones."""
        if not self._given:
            return
        rules = self._given.popleft()
        if rules == self._state.rules:
            logger.info("the rules are those in force already")
            return
        differing = ", ".join(rules.differing(self._state.rules))
        logger.info("rules put in force that differ in %s", differing)
        self._state.rules = rules
        body = RulesSet(rules.json_text)
        for name in self._state.runs:
            batch.add(name, now_ns, body)


def _put(body: Asked, state: State, now_ns: int, batch: Batch) -> None:
    """Put an entry into the log of each run that it concerns; silences hold for later ones too."""
    names = [*state.runs, *batch.begun]
    match body:
        case Acknowledged(run=name) | Forgotten(run=name):
            names = [name]
        case SilenceAdded(silence):
            state.silences.add(silence)
            names = [name for name in names if fits(silence.run, name)]
        case SilenceRemoved(silence_id):
            state.silences.remove(silence_id)
    for name in dict.fromkeys(names):
        batch.add(name, now_ns, body)
