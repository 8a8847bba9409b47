"""Room for runs and sessions: whether there is any, and what goes if there is none.

What goes is decided at the beginning of a round, against the state as it is then, and is put into
the log before everything else of the round.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Final

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.core.entries import Forgotten
from gradwatch_server.core.run import Run
from gradwatch_server.core.state import State
from gradwatch_server.engine.eviction import Candidate, Usefulness, candidates, outnumbered
from gradwatch_server.engine.occupancy import Occupancy, size_of
from gradwatch_wire import Hello

logger = logging.getLogger(__name__)

SPARE: Final = 64
"""Once something has to go, this part of the budget is freed of what is empty: not to look through
all there is for each newcomer."""

_LIVE: Final = (Usefulness.EMPTY, Usefulness.FRAMELESS)


class Room:
    """Knows what is taken, and makes room.

    Attributes:
        going: Sessions that leave memory in this round.
    """

    def __init__(self, state: State, budget_use: BudgetUse) -> None:
        self.going: set[bytes] = set()
        self._state = state
        self._use = budget_use
        self._limits = budget_use.limits
        self._occupancy = Occupancy(state.sessions.values())
        self._gone: dict[str, int] = {}  # run -> the last attempt that goes in this round
        self._candidates: list[Candidate] | None = None  # what else may go in it
        self._told: set[str] = set()
        self._report()

    def next_round(self) -> None:
        """Begin a round: what was decided in the last one is in the state."""
        self.going.clear()
        self._gone.clear()
        self._candidates = None

    def leaves(self, run: Run) -> bool:
        """Tell whether a run leaves memory in this round, with all of its attempts."""
        return self._gone.get(run.name, 0) >= run.attempts[-1].number

    def forgotten(self) -> Iterator[Forgotten]:
        """Yield what goes in this round."""
        for run, attempts in self._gone.items():
            yield Forgotten(run, attempts)

    def add(self, session: bytes, hello: Hello, client: str, *, begins: bool) -> None:
        """Count a new session, and the attempt if it begins one."""
        self._occupancy.add(session, hello, client, begins=begins)
        self._report()

    def claim(self, session: bytes, client: str) -> None:
        """Note whose a session is that was there at the start."""
        self._occupancy.claim(session, client)
        self._report()

    def remove(self, session: bytes) -> None:
        """Count a session no more."""
        self._occupancy.remove(session)
        self._report()

    def trim(self, names: Collection[str]) -> None:
        """Let the oldest attempts of runs go that have too many."""
        runs = self._state.runs
        for run in (runs[name] for name in names if name in runs):
            forgotten = outnumbered(run, self._limits.attempts)
            if forgotten is not None:
                self._let_go(forgotten, "attempts")
        if names:
            counts = (len(run.attempts) - self._num_gone(run) for run in runs.values())
            self._use["attempts"].used = max(counts, default=0)

    def _num_gone(self, run: Run) -> int:
        upto = self._gone.get(run.name)
        return 0 if upto is None else sum(own.number <= upto for own in run.attempts)

    def lacking(self, hello: Hello, client: str, *, begins: bool) -> str | None:
        """Return the budget that a new session would exceed, None if there is room.

        Args:
            hello: What it says of itself.
            client: Whose key it has, `""` without keys.
            begins: Whether it begins an attempt.
        """
        own, limits = self._occupancy, self._limits
        if not own.has_run(hello.run):
            if own.num_runs >= limits.runs:
                return "runs"
            if client and own.runs_of(client) >= limits.runs_per_client:
                return "runs_per_client"
        num_bytes = size_of(hello, begins=begins)
        if own.num_bytes + num_bytes > limits.sessions_bytes:
            return "sessions_bytes"
        if client and own.bytes_of(client) + num_bytes > limits.sessions_bytes_per_client:
            return "sessions_bytes_per_client"
        return None

    def make(self, hello: Hello, client: str, *, begins: bool) -> str | None:
        """Let the least useful go until there is room; return the budget that still lacks it."""
        while (budget := self.lacking(hello, client, begins=begins)) is not None:
            victim = self._victim(budget, hello.run, client)
            if victim is None:
                return budget
            self._let_go(victim.forgotten(), budget)
            self._spare(budget, hello.run, client)
        return None

    def refusal(self, budget: str, client: str) -> str:
        """Return why there is no room, for people."""
        own = self._occupancy
        most = self._limits.model_dump()[budget]
        if budget == "runs":
            whose = f", {own.runs_of(client)} of them of client {client!a}" if client else ""
            return f"{own.num_runs} runs live, as many as budget runs = {most} allows{whose}"
        if budget == "runs_per_client":
            return (
                f"client {client!a} has {own.runs_of(client)} runs that live, as many as budget "
                f"runs_per_client = {most} allows"
            )
        whose, used = "all", own.num_bytes
        if budget == "sessions_bytes_per_client":
            whose, used = f"client {client!a}", own.bytes_of(client)
        return f"sessions of {whose} that live take {used} bytes of budget {budget} = {most}"

    def _spare(self, budget: str, run: str, client: str) -> None:
        """Free a little more of what is empty."""
        most = getattr(self._limits, budget)
        while self._taken(budget, client) > most - most // SPARE:
            victim = self._victim(budget, run, client, upto=Usefulness.EMPTY)
            if victim is None:
                return
            self._let_go(victim.forgotten(), budget)

    def _taken(self, budget: str, client: str) -> int:
        own = self._occupancy
        match budget:
            case "runs":
                return own.num_runs
            case "runs_per_client":
                return own.runs_of(client)
            case "sessions_bytes":
                return own.num_bytes
        return own.bytes_of(client)

    def _victim(
        self, budget: str, run: str, client: str, upto: Usefulness = Usefulness.FRAMELESS
    ) -> Candidate | None:
        """Return the least useful of what would help a newcomer to *run*.

        Its own run is spared while that lives: it would not help a job that is too large.
        """
        if self._candidates is None:
            self._candidates = candidates(self._state, self._occupancy.num_of_owner())
        for place, own in enumerate(self._candidates):
            if own.usefulness > upto:
                return None
            if own.attempts <= self._gone.get(own.run, 0):
                continue
            if own.run == run and own.usefulness in _LIVE:
                continue
            if budget.startswith("runs") and not own.is_whole:
                continue
            if budget.endswith("_per_client") and self._occupancy.client_of(own.run) != client:
                continue
            return self._candidates.pop(place)
        return None

    def _let_go(self, forgotten: Forgotten, budget: str) -> None:
        run = self._state.runs[forgotten.run]
        self._gone[forgotten.run] = forgotten.attempts
        self._use[budget].num_evicted += 1
        for attempt in run.attempts:
            for session in (
                attempt.sessions.values() if attempt.number <= forgotten.attempts else ()
            ):
                self.going.add(session.id)
                self._occupancy.remove(session.id)
        if budget not in self._told:
            self._told.add(budget)
            what = f"run {run.name}"
            if forgotten.attempts < run.attempts[-1].number:
                what = f"attempts up to {forgotten.attempts} of {what}"
            most = getattr(self._limits, budget)
            logger.warning(
                "%s left memory to make room (budget %s = %d, told once)", what, budget, most
            )

    def _report(self) -> None:
        own, use = self._occupancy, self._use
        use["runs"].used = own.num_runs
        use["runs_per_client"].used = own.most_runs
        use["sessions_bytes"].used = own.num_bytes
        use["sessions_bytes_per_client"].used = own.most_bytes
