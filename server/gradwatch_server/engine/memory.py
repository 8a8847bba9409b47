"""Memory of runs: its use, and the choice of what leaves it where there is too little.

Each run keeps to its own budget by itself. The memory of all runs is compared with the budget at
the beginning of a round, and what has to go becomes an entry of the log of its run, before
everything else of that round.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import takewhile
from typing import Final

from gradwatch_server.budgets import Budgets, BudgetUse, LoggedBudgets
from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.entries import Body, Forgotten, FramesClosed, ManifestsDropped
from gradwatch_server.core.run import Run
from gradwatch_server.core.session import ATTEMPT_BYTES, RankSession, session_bytes
from gradwatch_server.core.state import State
from gradwatch_wire import Hello

logger = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 64
"""Attempts of a run in memory: each answer about a run lists them."""

SPARE: Final = 32
"""Part of a budget that is freed beyond what has to go, so that not every round decides anew."""

RANKS_PER_SHARE: Final = 1_024
"""Ranks that count as one where attempts are compared by the steps that wait."""


class EvictionOrder(IntEnum):
    """Order in which attempts leave memory. One that lives and sent a record is not in it."""

    NEVER_HEARD = 0
    ENDED_EMPTY = 1
    ENDED = 2


@dataclass(frozen=True, slots=True)
class Candidate:
    """Attempts of a run that may leave memory.

    Args:
        attempts: Number of the newest of them; they are all up to it.
        heard_ns: Last sign of life of any of them, nanoseconds since the epoch.
        is_whole: Whether the run goes with them.
    """

    order: EvictionOrder
    run: str
    attempts: int
    heard_ns: int
    is_whole: bool


def candidates(runs: Iterable[Run], runs_of_owner: Mapping[str, int]) -> list[Candidate]:
    """Return what may leave memory, what goes first first.

    Within one order, runs of the client go first that has most, then those that were not heard of
    for longest.

    Args:
        runs_of_owner: Run to the number of runs of its client; without those of no client.
    """

    def sort_key(candidate: Candidate) -> tuple[int, int, int]:
        return candidate.order, -runs_of_owner.get(candidate.run, 0), candidate.heard_ns

    return sorted((candidate for run in runs for candidate in _candidates_of(run)), key=sort_key)


def _candidates_of(run: Run) -> Iterator[Candidate]:
    """Yield the run as a whole if it may go, else its oldest attempts as far as they may."""
    attempts = run.attempts
    ended = list(takewhile(has_ended, attempts))
    unheard = list(takewhile(_is_unheard, ended))
    if all(map(_is_unheard, attempts)):
        yield _candidate(EvictionOrder.NEVER_HEARD, run, attempts)
        return
    if unheard:
        yield _candidate(EvictionOrder.NEVER_HEARD, run, unheard)
    if ended:
        is_empty = not any(attempt.num_frames for attempt in ended)
        order = EvictionOrder.ENDED_EMPTY if is_empty else EvictionOrder.ENDED
        yield _candidate(order, run, ended)


def _candidate(order: EvictionOrder, run: Run, attempts: list[Attempt]) -> Candidate:
    heard_ns = max(attempt.signs.heard_ns for attempt in attempts)
    is_whole = len(attempts) == len(run.attempts)
    return Candidate(order, run.name, attempts[-1].number, heard_ns, is_whole)


def has_ended(attempt: Attempt) -> bool:
    return not attempt.lives


def _is_unheard(attempt: Attempt) -> bool:
    return not any(session.num_stored for session in attempt.sessions.values())


@dataclass(slots=True)
class _RunUse:
    """Memory of one run.

    Args:
        client: Who opened it, empty without keys.
        sessions_bytes: Part of the sessions, with those that were admitted in this round.
        num_shed: Steps closed and manifests dropped for want of room so far, by budget.
    """

    client: str
    num_bytes: int = 0
    open_bytes: int = 0
    manifests_bytes: int = 0
    sessions_bytes: int = 0
    num_shed: Counter[str] = field(default_factory=Counter)


class RunMemory:
    """Memory of all runs.

    Attributes:
        leaving: Sessions that leave memory in this round.
    """

    def __init__(self, state: State, away: Collection[str], budget_use: BudgetUse) -> None:
        self.leaving: set[bytes] = set()
        self._state = state
        self._away = away
        self._use = budget_use
        self._limits: Budgets = budget_use.limits
        self._runs: dict[str, _RunUse] = {}
        self._runs_of: Counter[str] = Counter()  # client -> its runs
        self._total = _RunUse("")
        self._changed: set[str] = set(state.runs)
        self._gone: dict[str, int] = {}  # run -> its last attempt that leaves in this round
        self._candidates: list[Candidate] | None = None
        self._told: set[str] = set()
        self.measure()

    @property
    def num_runs(self) -> int:
        """Number of runs, with those that are to come."""
        return len(self._runs) + len(self._away)

    def mark_changed(self, run: str) -> None:
        """Record that an entry concerned a run."""
        self._changed.add(run)

    def begin_round(self, grown: Collection[str]) -> Iterator[tuple[str, Body]]:
        """Measure the runs that changed; yield what has to go, with its run."""
        self.leaving.clear()
        self._gone.clear()
        self._candidates = None
        if not self._changed:
            return
        self.measure()
        for run in filter(None, map(self._state.runs.get, grown)):
            oldest = run.attempts[: max(0, len(run.attempts) - MAX_ATTEMPTS)]
            ended = list(takewhile(has_ended, oldest))
            if ended:
                self._release(run, ended[-1].number)
        yield from self._shed_total()

    def gone(self) -> Iterator[tuple[str, Body]]:
        for run, attempts in self._gone.items():
            yield run, Forgotten(run, attempts)

    def leaves(self, run: Run) -> bool:
        """Tell whether a run leaves memory in this round, with all of its attempts."""
        return self._gone.get(run.name, 0) >= run.attempts[-1].number

    def add(self, hello: Hello, client: str, *, begins: bool) -> None:
        """Count a session that is admitted, and its run and attempt if it begins them."""
        use = self._runs.get(hello.run)
        if use is None:
            use = self._runs[hello.run] = _RunUse(client)
            self._runs_of[client] += 1
        num_bytes = _size(hello, begins=begins)
        use.sessions_bytes += num_bytes
        use.num_bytes += num_bytes
        self._total.num_bytes += num_bytes
        self._changed.add(hello.run)
        self._use["runs"].used = self.num_runs

    def claim(self, run: str, client: str) -> None:
        """Record who opened a run that was nobody's since the start."""
        use = self._runs.get(run)
        if use is not None and not use.client and client:
            use.client = client
            self._runs_of[""] -= 1
            self._runs_of[client] += 1

    def find_lacking(self, hello: Hello, client: str, *, begins: bool) -> str | None:
        """Return the budget that a new session would exceed, None if there is room.

        Args:
            client: Name of its key, empty without keys.
        """
        limits, use = self._limits, self._runs.get(hello.run)
        if use is None:
            if self.num_runs >= limits.runs:
                return "runs"
            if client and self._runs_of[client] >= limits.runs_per_client:
                return "runs_per_client"
        num_bytes = _size(hello, begins=begins)
        if (0 if use is None else use.sessions_bytes) + num_bytes > limits.sessions_bytes:
            return "run_bytes"
        if self._total.num_bytes + num_bytes > limits.total_bytes:
            return "total_bytes"
        return None

    def make_room(self, hello: Hello, client: str, *, begins: bool) -> str | None:
        """Let runs and attempts go until there is room; return the budget that still lacks it."""
        while (budget := self.find_lacking(hello, client, begins=begins)) is not None:
            victim = self._find_victim(budget, hello.run, client)
            if victim is None:
                return budget
            self._evict(victim, budget)
            self._evict_spare(budget, hello.run, client)
        return None

    def refusal(self, budget: str, hello: Hello, client: str) -> str:
        """Return why there is no room, for people."""
        limit = getattr(self._limits, budget)
        if budget == "runs":
            whose = f", {self._runs_of[client]} of them of client {client!a}" if client else ""
            return f"{self.num_runs} runs live, as many as budget runs = {limit} allows{whose}"
        if budget == "runs_per_client":
            return (
                f"client {client!a} has {self._runs_of[client]} runs that live, as many as budget "
                f"runs_per_client = {limit} allows"
            )
        if budget == "run_bytes":
            taken = self._runs[hello.run].sessions_bytes if hello.run in self._runs else 0
            return (
                f"sessions of run {hello.run!a} take {taken} bytes, and budget run_bytes = {limit} "
                "leaves no more"
            )
        return f"runs that live take {self._total.num_bytes} bytes of budget total_bytes = {limit}"

    def measure(self) -> None:
        """Compare the runs that changed with the state."""
        for name in self._changed:
            run, before = self._state.runs.get(name), self._runs.pop(name, None)
            use = _RunUse("" if before is None else before.client)
            if run is not None:
                _measure_run(run, use)
                self._runs[name] = use
                delayed = run.alert_budget.take_delayed()
                self._use["alert_events_per_min"].num_refused += delayed
            if before is None:
                before = _RunUse("", num_shed=use.num_shed)
                self._runs_of[use.client] += 1
            if run is None:
                self._runs_of[use.client] -= 1
            self._total.num_bytes += use.num_bytes - before.num_bytes
            self._total.open_bytes += use.open_bytes - before.open_bytes
            self._total.manifests_bytes += use.manifests_bytes - before.manifests_bytes
            for budget, count in (use.num_shed - before.num_shed).items():
                self._use[budget].num_evicted += count
        self._changed.clear()
        self._use["runs"].used = self.num_runs
        self._use["total_bytes"].used = self._total.num_bytes

    def report(self) -> None:
        """Count the use of budgets in which the largest run counts."""
        use = self._use
        use["runs_per_client"].used = max(
            (count for client, count in self._runs_of.items() if client), default=0
        )
        use["run_bytes"].used = max((run.num_bytes for run in self._runs.values()), default=0)

    def _shed_total(self) -> Iterator[tuple[str, Body]]:
        """Yield the steps and manifests that go where all take too much, and forget runs."""
        shares = LoggedBudgets.model_construct(run_bytes=self._limits.total_bytes)
        if excess := _excess(self._total.open_bytes, shares.open_frames_bytes):
            # One step of many ranks takes much, and is no more than each of them may send.
            attempt = max(self._judged(), key=_open_bytes_per_share)
            rest = max(attempt.open.num_bytes - excess, 0)
            self._changed.add(attempt.run)
            yield attempt.run, FramesClosed(attempt.run, attempt.number, rest)
        if excess := _excess(self._total.manifests_bytes, shares.manifests_bytes):
            attempt = max(self._judged(), key=lambda attempt: attempt.manifests.num_bytes)
            session = max(attempt.sessions.values(), key=_droppable)
            rest = max(session.manifests_bytes - excess, 0)
            self._changed.add(attempt.run)
            yield attempt.run, ManifestsDropped(session.id, rest)
        while self._total.num_bytes > self._limits.total_bytes and not self._away:
            victim = self._find_victim("total_bytes", "", "")
            if victim is None:
                return
            self._evict(victim, "total_bytes")

    def _judged(self) -> Iterator[Attempt]:
        return (attempt for run in self._state.runs.values() for attempt in run.judged)

    def _find_victim(
        self, budget: str, run: str, client: str, upto: EvictionOrder = EvictionOrder.ENDED
    ) -> Candidate | None:
        """Return the first candidate that would help a newcomer to *run*.

        Its own run is spared while that lives: it would not help a job that is too large.
        """
        if self._candidates is None:
            owners = {
                name: self._runs_of[use.client] for name, use in self._runs.items() if use.client
            }
            self._candidates = candidates(self._state.runs.values(), owners)
        for index, candidate in enumerate(self._candidates):
            if candidate.order > upto:
                return None
            if candidate.attempts <= self._gone.get(candidate.run, 0):
                continue
            if budget == "run_bytes" and candidate.run != run:
                continue
            if (
                candidate.run == run
                and candidate.order is EvictionOrder.NEVER_HEARD
                and candidate.is_whole
            ):
                continue
            if budget.startswith("runs") and not candidate.is_whole:
                continue
            if budget == "runs_per_client" and self._runs[candidate.run].client != client:
                continue
            return self._candidates.pop(index)
        return None

    def _evict_spare(self, budget: str, run: str, client: str) -> None:
        """Evict a little more of what was never heard: many newcomers may follow one."""
        limit = getattr(self._limits, budget)
        while (
            self.num_runs if budget == "runs" else self._total.num_bytes
        ) > limit - limit // SPARE:
            victim = self._find_victim(budget, run, client, upto=EvictionOrder.NEVER_HEARD)
            if victim is None:
                return
            self._evict(victim, budget)

    def _evict(self, victim: Candidate, budget: str) -> None:
        run = self._state.runs[victim.run]
        self._release(run, victim.attempts)
        self._use[budget].num_evicted += 1
        if budget not in self._told:
            self._told.add(budget)
            what = f"run {run.name}"
            if not self.leaves(run):
                what = f"attempts up to {victim.attempts} of {what}"
            limit = getattr(self._limits, budget)
            text = "%s left memory to make room (budget %s = %d, told once)"
            logger.warning(text, what, budget, limit)

    def _release(self, run: Run, attempts: int) -> None:
        """Let the attempts of a run go up to a number, and count what they took no more."""
        before, self._gone[run.name] = self._gone.get(run.name, 0), attempts
        self._changed.add(run.name)
        use, freed = self._runs[run.name], 0
        for attempt in run.attempts:
            if before < attempt.number <= attempts:
                freed += attempt.num_bytes
                self.leaving.update(session.id for session in attempt.sessions.values())
        if self.leaves(run):
            del self._runs[run.name]
            self._runs_of[use.client] -= 1
            self._total.open_bytes -= use.open_bytes
            self._total.manifests_bytes -= use.manifests_bytes
            freed = use.num_bytes
        use.num_bytes -= freed
        use.sessions_bytes -= min(freed, use.sessions_bytes)
        self._total.num_bytes -= freed


def _measure_run(run: Run, use: _RunUse) -> None:
    use.sessions_bytes = use.num_bytes = run.sessions_bytes
    for attempt in run.shown:
        use.num_bytes += attempt.frames_bytes
        use.open_bytes += attempt.open.num_bytes
        use.manifests_bytes += attempt.manifests.num_bytes
        use.num_shed += attempt.open.num_closed_early + attempt.manifests.num_dropped


def _size(hello: Hello, *, begins: bool) -> int:
    return session_bytes(hello) + (ATTEMPT_BYTES if begins else 0)


def _excess(used: int, limit: int) -> int:
    """Return how much has to go, 0 if all fits."""
    return used - limit + limit // SPARE if used > limit else 0


def _open_bytes_per_share(attempt: Attempt) -> float:
    return attempt.open.num_bytes / max(1, -(-len(attempt.ranks.alive) // RANKS_PER_SHARE))


def _droppable(session: RankSession) -> tuple[bool, int]:
    """Order sessions by what they can do without: the newest manifest is needed for what comes."""
    return len(session.manifests) > 1, session.manifests_bytes
