"""The checkpointer: when the state is saved, what is read at a start, when the log is trimmed.

It belongs to the engine's thread, and works in slices between two batches, so that no record
waits long for its acknowledgement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gradwatch_server.budgets import LoggedBudgets
from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import (
    BudgetsSet,
    Entry,
    Forgotten,
    RulesSet,
    SilenceAdded,
    SilenceRemoved,
)
from gradwatch_server.core.run import Run
from gradwatch_server.core.state import State
from gradwatch_server.storage.checkpoints import (
    SALVAGED,
    Change,
    Checkpoint,
    Position,
    encode_change,
    encode_forgotten,
    encode_position,
    load_checkpoint,
)
from gradwatch_server.storage.retention import SLICE_BYTES, Retention, RetentionPolicy
from gradwatch_server.storage.settings_history import SettingsHistory
from gradwatch_server.storage.store import RunSave, StorageError, Store

logger = logging.getLogger(__name__)

MAX_TAIL: Final = 1_000
"""Entries after which what changed is saved: a restart applies so many in some 0.3 s."""

SHARE: Final = 0.1
"""Share of the engine's time that saving and trimming may take."""

MAX_SHARE: Final = 0.35
"""The same once more than `MAX_TAIL` entries would have to be applied, in proportion to these."""

SLICE_NS: Final = 10_000_000
"""Time in which runs are encoded at once: a small one takes 0.7 ms, and there may be 1,000."""

FINISH_NS: Final = 1_000_000_000
"""Time for saving at the end; what is not saved then is applied at the next start."""

TRIM_NS: Final = 10_000_000_000
"""How often it is looked whether something is to be trimmed."""


@dataclass(slots=True)
class _Unsaved:
    """A run that changed since it was saved: up to which entry it is, and in which attempts."""

    offset: int
    attempts: set[int] = field(default_factory=set)


class Checkpointer:
    """Saves and trims what one engine holds."""

    def __init__(self, store: Store, policy: RetentionPolicy, clock: Clock) -> None:
        self._store = store
        self._policy = policy
        self._clock = clock
        self._retention = Retention(store, policy)
        self._unsaved: dict[str, _Unsaved] = {}  # oldest first
        self._newest: dict[str, int] = {}  # run -> its newest attempt that is saved
        self._gone: list[bytes] = []  # sessions that left memory
        self._forgotten: dict[str, int] = {}  # as saved
        self._settings = SettingsHistory()
        self._position = Position()
        self._restored = 0  # the place of the checkpoint that was read
        self._target = 0  # the place up to which all is being saved
        self._began_ns = clock.now_ns()
        self._rest_until_ns = 0
        self._trim_ns = 0
        self._trims_first = False
        self._failed = False
        self.before_save: Callable[[Sequence[str]], None] = lambda _runs: None
        self._salvaged = False  # what is saved was read from a damaged store, and may lack runs

    @property
    def covered(self) -> int:
        """The newest entry of which a restart needs nothing any more, nor of those before."""
        return self._position.start

    def restore(self, window_steps: int) -> State:
        """Return the state of the newest good checkpoint; `tail` gives what is to be applied.

        Raises:
            StorageError: If the store cannot be read.
        """
        saved = load_checkpoint(self._store.state, window_steps)
        state = State(window_steps)
        state.runs, state.forgotten = saved.runs, saved.forgotten
        self._forgotten = dict(saved.forgotten)
        for run in state.runs.values():
            for attempt in run.attempts:
                state.sessions.update((own.id, own) for own in attempt.sessions.values())
                attempt.active_alerts.silences = state.silences
            self._newest[run.name] = run.attempts[-1].number
        saved.damaged += self._lacking(saved)
        behind = {**saved.position.behind, **dict.fromkeys(saved.damaged, 0)}
        rules = {} if saved.damaged else saved.position.rules
        silences = () if saved.damaged else saved.position.silences
        budgets = {} if saved.damaged else saved.position.budgets
        self._position = Position(saved.position.offset, rules, behind, silences, budgets)
        self._restored = saved.position.offset
        self._store.log.skip_to(saved.position.offset)
        in_order = sorted(behind.items(), key=lambda item: item[1])
        self._unsaved = {name: _Unsaved(offset) for name, offset in in_order}
        for name in behind.keys() & state.runs.keys():
            self._unsaved[name].attempts |= {own.number for own in state.runs[name].attempts}
        state.rules = Rules.model_validate(rules)
        if budgets:
            state.keep_to(LoggedBudgets.model_construct(**budgets))
        state.silences.replace(silences)
        self._settings.begin(self._position, state.silences.state_dict())
        return state

    def _lacking(self, saved: Checkpoint) -> list[str]:
        """Return the runs that a damaged store had, as far as the log has them."""
        if not self._store.state.part(SALVAGED):
            return []
        self._salvaged = True
        known = {*saved.runs, *saved.forgotten, *saved.damaged}
        return sorted(self._store.log.runs() - known)

    def tail(self, state: State) -> Iterator[tuple[int, Entry, Sequence[str]]]:
        """Yield what is to be applied with its place, and the runs that are ahead of it already."""
        position, passed_over = self._position, 0
        for offset, entry in self._store.log.entries(position.start):
            if offset > position.offset or isinstance(entry.body, RulesSet | BudgetsSet):
                yield offset, entry, ()
                continue
            if isinstance(entry.body, SilenceAdded | SilenceRemoved):
                behind = position.behind
                ahead = [n for n in state.runs if behind.get(n, position.offset) >= offset]
                yield offset, entry, ahead
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
        self._settings.note(entry, offset, state.silences)
        for name, attempt in state.concerns(entry):
            # At a start an entry may come again that the run, as it is saved, has already.
            own = max(offset - 1, self._restored)
            unsaved = self._unsaved.setdefault(name, _Unsaved(own))
            unsaved.attempts.add(attempt)
        if isinstance(body, Forgotten) and body.run in state.runs:
            self._gone += [
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
            busy = self._do_due(now, state)
        except StorageError as error:
            self._warn(error)
            self._rest_until_ns = now + 10_000_000_000
            return
        if busy:
            spent = self._clock.now_ns() - now
            tail = self._store.log.last_offset - self._position.start
            share = min(SHARE * max(1.0, tail / MAX_TAIL), MAX_SHARE)
            self._rest_until_ns = now + round(spent / share)

    def _do_due(self, now: int, state: State) -> bool:
        """Save or trim; in turns, for a busy engine always has something to save."""
        self._trims_first = not self._trims_first
        if self._trims_first and self._trim_due(now, state):
            return True
        return self._save_due(now, state) or (not self._trims_first and self._trim_due(now, state))

    def finish(self, state: State) -> None:
        """Save what there is time for, so that the next start is quick."""
        deadline_ns = self._clock.now_ns() + FINISH_NS
        try:
            while self._unsaved and self._clock.now_ns() < deadline_ns:
                self._save(state)
        except StorageError as error:
            self._warn(error)

    def _warn(self, error: StorageError) -> None:
        if not self._failed:
            logger.warning("no checkpoint can be written, tried again (told once): %s", error)
        self._failed = True

    def _save_due(self, now: int, state: State) -> bool:
        last = self._store.log.last_offset
        if not self._is_saving() and (
            last - self._target >= MAX_TAIL
            or now - self._began_ns >= self._policy.checkpoint_s * 1e9
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
            StorageError: If the disk is full or fails; nothing was written then.
        """
        runs = self._slice(state)
        saved = [run.run for run in runs]
        position = self._position_without(saved)
        parts = encode_position(position)
        forgotten = self._forgotten_at(position, state)
        if forgotten != self._forgotten:
            parts |= encode_forgotten(forgotten)
        if self._salvaged:
            parts |= {SALVAGED: b""}
        self.before_save(saved)
        self._store.state.save(parts, runs)
        self._forgotten = forgotten
        self._salvaged = False
        self._note_saved(saved, position, state)

    def _slice(self, state: State) -> list[RunSave]:
        """Return a slice of what is to be saved."""
        saves: list[RunSave] = []
        size, began_ns = 0, self._clock.now_ns()
        for name in self._unsaved:
            if size > SLICE_BYTES or self._clock.now_ns() - began_ns > SLICE_NS:
                break
            run = state.runs.get(name)
            saves.append(RunSave(run=name) if run is None else encode_change(self._change(run)))
            size += saves[-1].num_bytes
        return saves

    def _forgotten_at(self, position: Position, state: State) -> dict[str, int]:
        """Return the names as they were where each run stands: the later entries come again."""
        behind = position.behind
        before = {name: last for name, last in self._forgotten.items() if name in behind}
        return before | {n: last for n, last in state.forgotten.items() if n not in behind}

    def _change(self, run: Run) -> Change:
        newest = self._newest.get(run.name)
        if newest is None:
            return Change(run, run.attempts, whole=True)
        touched = self._unsaved[run.name].attempts
        attempts = [own for own in run.attempts if own.number > newest or own.number in touched]
        return Change(run, attempts, whole=False)

    def _position_without(self, saved: Sequence[str]) -> Position:
        gone = set(saved)
        rest = {n: own.offset for n, own in self._unsaved.items() if n not in gone}
        return self._settings.position(self._store.log.last_offset, rest)

    def _note_saved(self, saved: Sequence[str], position: Position, state: State) -> None:
        for name in saved:
            del self._unsaved[name]
            run = state.runs.get(name)
            if run is None:
                self._newest.pop(name, None)
            else:
                self._newest[name] = run.attempts[-1].number
        self._position = position
        self._settings.forget_before(position.start)
        if self._failed and not self._is_saving():  # one slice may fit where the next does not
            logger.warning("checkpoints can be written again")
            self._failed = False

    def _trim_due(self, now: int, state: State) -> bool:
        if now < self._trim_ns:
            return False
        if self._gone:
            self._retention.trim_sessions(self._gone)
            self._gone = []
            return True
        if self._retention.trim(now, self._position.start, state):
            return True
        self._trim_ns = now + TRIM_NS
        return False
