"""The keeper: when the state is saved, what is read at a start, and when the log is trimmed.

It belongs to the engine's thread, and works in slices between two batches, so that no record
waits long for its acknowledgement.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gradwatch_server.clock import now_ns
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import Entry, Forgotten, RulesSet
from gradwatch_server.core.run import Run
from gradwatch_server.core.state import State
from gradwatch_server.storage.retention import SLICE_BYTES, Retention, RetentionPolicy
from gradwatch_server.storage.sqlite.checkpoints import Change, Checkpoints, Position
from gradwatch_server.storage.sqlite.database import deferred_sync, transaction
from gradwatch_server.storage.sqlite.log import Log

logger = logging.getLogger(__name__)

MAX_TAIL: Final = 1_000
"""Entries after which what changed is saved: a restart folds so many in some 0.3 s."""

SHARE: Final = 0.1
"""Share of the engine's time that saving and trimming may take."""

MAX_SHARE: Final = 0.35
"""The same once more than `MAX_TAIL` entries would have to be folded, in proportion to these."""

FILL_CHUNKS: Final = 32
"""Chunks of a window that are filled in at once."""

FINISH_NS: Final = 1_000_000_000
"""Time for saving at the end; what is not saved then is folded at the next start."""

TRIM_NS: Final = 10_000_000_000
"""How often it is looked whether something is to be trimmed."""


@dataclass(slots=True)
class _Unsaved:
    """A run that changed since it was saved: up to which entry it is, and in which attempts."""

    offset: int
    attempts: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Form:
    """What is saved of a run: its current attempt, and the frames that its window had."""

    attempt: int
    num_frames: int


class Checkpointer:
    """Saves and trims what one engine holds."""

    def __init__(self, log: Log, keeping: RetentionPolicy) -> None:
        self._log = log
        self._keeping = keeping
        self._retention = Retention(log, keeping)
        self._unsaved: dict[str, _Unsaved] = {}  # oldest first
        self._forms: dict[str, _Form] = {}
        self._heads: list[bytes] = []
        self._forgotten: dict[str, int] = {}  # as it is saved
        self._absent: list[str] = []  # runs with frames that are not filled in yet
        self._rules: list[tuple[int, dict[str, Any]]] = [(0, {})]
        self._position = Position()
        self._target = 0  # the place up to which all is being saved
        self._began_ns = now_ns()
        self._rest_until_ns = 0
        self._trim_ns = 0
        self._failed = False

    def restore(self, window_steps: int) -> State:
        """Return the state of the newest good checkpoint; `tail` gives what is to be folded.

        Raises:
            sqlite3.Error: If the file cannot be read.
        """
        saved = Checkpoints(self._log.db).load(window_steps)
        state = State(window_steps)
        state.runs, state.forgotten = saved.runs, saved.forgotten
        self._forgotten = dict(saved.forgotten)
        for run in state.runs.values():
            for attempt in run.attempts:
                state.sessions.update((own.id, own) for own in attempt.sessions.values())
            if run.name not in saved.resized:
                self._forms[run.name] = _form_of(run)
        behind = {**saved.position.behind, **dict.fromkeys(saved.damaged, 0)}
        rules = {} if saved.damaged else saved.position.rules
        self._position = Position(saved.position.offset, rules, behind)
        self._log.last_offset = max(self._log.last_offset, saved.position.offset)
        in_order = sorted(behind.items(), key=lambda item: item[1])
        self._unsaved = {name: _Unsaved(offset) for name, offset in in_order}
        for name in behind.keys() & state.runs.keys():
            self._unsaved[name].attempts |= {own.number for own in state.runs[name].attempts}
        self._absent = list(reversed(state.runs))
        self._rules = [(self._position.start, dict(rules))]
        state.rules = Rules.model_validate(rules)
        return state

    def tail(self, state: State) -> Iterator[tuple[int, Entry, Sequence[str]]]:
        """Yield what is to be applied with its place, and the runs that are ahead of it already."""
        position, passed_over = self._position, 0
        for offset, entry in self._log.entries(position.start):
            if offset > position.offset or isinstance(entry.body, RulesSet):
                yield offset, entry, ()
                continue
            names = {name for name, _ in state.concerns(entry)}
            passed_over += not names
            ahead = [n for n in names if position.behind.get(n, position.offset) >= offset]
            if len(ahead) < len(names):
                yield offset, entry, ahead
        # As they were: of what one tick raises, the alerts come in the order of the runs.
        in_order = sorted(state.runs.items(), key=lambda item: item[1].created_ns)
        state.runs = dict(in_order)
        if passed_over and 0 in position.behind.values():
            logger.warning("%d entries were of nothing that is known", passed_over)

    def note(self, entry: Entry, offset: int, state: State) -> None:
        """Note what an entry is about to change."""
        body = entry.body
        if isinstance(body, RulesSet):
            self._rules.append((offset, dict(body.rules)))
        for name, attempt in state.concerns(entry):
            unsaved = self._unsaved.setdefault(name, _Unsaved(offset - 1))
            unsaved.attempts.add(attempt)
        if isinstance(body, Forgotten) and body.run in state.runs:
            self._heads += [
                session.id
                for attempt in state.runs[body.run].attempts
                if attempt.number <= body.attempts
                for session in attempt.sessions.values()
            ]

    def work(self, now: int, state: State) -> None:
        """Do one slice of what is due, if it is its turn."""
        if now < self._rest_until_ns:
            return
        try:
            busy = self._save_due(now, state) or self._fill_due(state) or self._trim_due(now)
        except sqlite3.Error as error:
            self._tell(error)
            self._rest_until_ns = now + 10_000_000_000
            return
        if busy:
            spent = now_ns() - now
            tail = self._log.last_offset - self._position.start
            share = min(max(SHARE, SHARE * tail / MAX_TAIL), MAX_SHARE)
            self._rest_until_ns = now + round(spent / share)

    def finish(self, state: State) -> None:
        """Save what there is time for, so that the next start is quick."""
        deadline = now_ns() + FINISH_NS
        try:
            while self._unsaved and now_ns() < deadline:
                self._save(state)
        except sqlite3.Error as error:
            self._tell(error)

    def _tell(self, error: sqlite3.Error) -> None:
        if not self._failed:
            logger.warning("no checkpoint can be written, tried again (told once): %s", error)
        self._failed = True

    def _save_due(self, now: int, state: State) -> bool:
        last = self._log.last_offset
        if not self._is_saving() and (
            last - self._target >= MAX_TAIL
            or now - self._began_ns >= self._keeping.checkpoint_s * 1e9
        ):
            self._target, self._began_ns = last, now
        if not self._is_saving():
            return False
        self._save(state)
        return True

    def _is_saving(self) -> bool:
        oldest = next(iter(self._unsaved.values()), None)
        return oldest is not None and oldest.offset < self._target

    def _save(self, state: State) -> None:
        """Save the runs that have waited longest, and say how far all are.

        Raises:
            sqlite3.Error: If the disk is full or fails; nothing was written then.
        """
        checkpoints = Checkpoints(self._log.db)
        saved: list[str] = []
        with deferred_sync(self._log.db), transaction(self._log.db):
            size = 0
            for name in self._unsaved:
                if size > SLICE_BYTES:
                    break
                run = state.runs.get(name)
                if run is None:
                    checkpoints.remove(name)
                else:
                    change = self._change(run)
                    if self._absent:
                        absent = set(run.current.window.absent())
                        checkpoints.fill(
                            run, absent & set(run.current.window.changed(change.since))
                        )
                    size += checkpoints.put(change)
                saved.append(name)
            position = self._position_without(saved)
            checkpoints.put_position(position)
            forgotten = self._forgotten_at(position, state)
            if forgotten != self._forgotten:
                checkpoints.put_forgotten(forgotten)
        self._forgotten = forgotten
        self._note_saved(saved, position, state)

    def _forgotten_at(self, position: Position, state: State) -> dict[str, int]:
        """Return the names as they were where each run stands: what is behind is folded again."""
        behind = position.behind
        before = {name: last for name, last in self._forgotten.items() if name in behind}
        return before | {n: last for n, last in state.forgotten.items() if n not in behind}

    def _change(self, run: Run) -> Change:
        form = self._forms.get(run.name)
        if form is None:
            return Change(run, run.attempts, 0, whole=True)
        touched = self._unsaved[run.name].attempts
        attempts = [
            own for own in run.attempts if own.number >= form.attempt or own.number in touched
        ]
        since = form.num_frames if form.attempt == run.current.number else 0
        return Change(run, attempts, since, whole=False)

    def _position_without(self, saved: Sequence[str]) -> Position:
        rest = {n: own.offset for n, own in self._unsaved.items() if n not in set(saved)}
        start = Position(self._log.last_offset, {}, rest).start
        rules = [plain for offset, plain in self._rules if offset <= start][-1]
        return Position(self._log.last_offset, rules, rest)

    def _note_saved(self, saved: Sequence[str], position: Position, state: State) -> None:
        for name in saved:
            del self._unsaved[name]
            run = state.runs.get(name)
            if run is None:
                self._forms.pop(name, None)
            else:
                self._forms[name] = _form_of(run)
        self._position = position
        self._rules = [
            (position.start, dict(position.rules)),
            *(own for own in self._rules if own[0] > position.start),
        ]
        if self._failed:
            logger.warning("checkpoints can be written again")
            self._failed = False

    def _fill_due(self, state: State) -> bool:
        """Fill in a slice of what the windows held, behind what was read at the start."""
        while self._absent:
            run = state.runs.get(self._absent[-1])
            absent = run.current.window.absent() if run is not None else []
            if run is not None and absent:
                Checkpoints(self._log.db).fill(run, absent[:FILL_CHUNKS])
                return True
            self._absent.pop()
        return False

    def _trim_due(self, now: int) -> bool:
        if now < self._trim_ns:
            return False
        if self._heads:
            self._retention.drop_heads(self._heads)
            self._heads = []
            return True
        if self._retention.trim(now, self._position.start):
            return True
        self._trim_ns = now + TRIM_NS
        return False


def _form_of(run: Run) -> _Form:
    return _Form(run.current.number, run.current.window.num_added)
