"""Admission: which peers may write which run, and which HELLOs open a session.

A HELLO for which there is no room waits until the next round, in which the least useful goes. It is
refused if nothing may go.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import dropwhile
from typing import Final, TypeAlias

from gradwatch_server.budgets import BudgetUse
from gradwatch_server.core.state import State
from gradwatch_server.engine.memory import MAX_ATTEMPTS, RunMemory, has_ended
from gradwatch_server.ingest.inbox import Inbox
from gradwatch_server.ingest.message import IngestMessage
from gradwatch_wire import Hello, Refuse
from gradwatch_wire.health import RUN_NAME_RULE, is_run_name

logger = logging.getLogger(__name__)

MAX_HELLO_BYTES: Final = 8_192
"""Largest HELLO, bytes; one of our client has some 300."""

MAX_WAITING: Final = 512
"""HELLOs that wait for the next round; one more is not answered, and its client says it again."""

Launch: TypeAlias = tuple[str, str, int]
"""Run, job and world: ranks that say the same are of one attempt, each once."""

_MINUTE_NS = 60_000_000_000


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_ns: int
    is_told: bool = False


@dataclass(slots=True)
class _Joined:
    """The ranks that joined the newest attempt of a launch in this round."""

    is_new: bool
    ranks: set[int] = field(default_factory=set)


class AttemptRate:
    """Gives each run so many attempts at once, and as many a minute for ever."""

    def __init__(self, per_min: int) -> None:
        self._per_min = per_min
        self._buckets: dict[str, _Bucket] = {}
        self._joined: dict[Launch, _Joined] = {}

    def begins(self, hello: Hello, *, is_found: bool) -> bool:
        """Tell whether a HELLO begins an attempt.

        Args:
            is_found: Whether the state has an attempt for it. It has nothing of this round yet.
        """
        joined = self._joined.get(_launch(hello))
        if joined is None:
            return not is_found
        return hello.rank in joined.ranks or not (joined.is_new or is_found)

    def join(self, hello: Hello) -> None:
        self._joined.setdefault(_launch(hello), _Joined(is_new=False)).ranks.add(hello.rank)

    def begin(self, hello: Hello, now_ns: int) -> bool:
        """Count an attempt; return False if it has to wait."""
        bucket = self._buckets.setdefault(hello.run, _Bucket(self._per_min, now_ns))
        passed = max(0, now_ns - bucket.at_ns) / _MINUTE_NS
        bucket.tokens = min(self._per_min, bucket.tokens + passed * self._per_min)
        bucket.at_ns = now_ns
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        self._joined[_launch(hello)] = _Joined(is_new=True, ranks={hello.rank})
        return True

    def is_first_told(self, run: str) -> bool:
        """Tell whether this is asked for the first time of a run that had to wait."""
        bucket = self._buckets.get(run)
        if bucket is None or bucket.is_told:
            return False
        bucket.is_told = True
        return True

    def next_round(self, runs: Collection[str]) -> None:
        """Forget who joined in the last round, which the state has now, and runs that are gone."""
        self._joined.clear()
        if len(self._buckets) > len(runs):
            self._buckets = {run: bucket for run, bucket in self._buckets.items() if run in runs}


def _launch(hello: Hello) -> Launch:
    return hello.run, hello.job, hello.world


HELLOS_PER_ROUND: Final = 8
"""HELLOs that are taken of those that waited: a run that begins takes some 1 ms."""


class AdmissionResult(Enum):
    """Decision about a HELLO."""

    ADMITTED = "admitted"
    WAITS = "waits"
    REFUSED = "refused"


class Admission:
    """Refuses what may not come in; each refusal is counted and told to the peer."""

    def __init__(
        self,
        ingest: Inbox,
        state: State,
        away: Collection[str],
        memory: RunMemory,
        budget_use: BudgetUse,
    ) -> None:
        self._away = away
        self._memory = memory
        self._ingest = ingest
        self._state = state
        self._use = budget_use
        self._limits = budget_use.limits
        self._rate = AttemptRate(self._limits.attempts_per_min)
        self.waiting: deque[IngestMessage] = deque()
        self.grown = Counter(dict.fromkeys(state.runs, 0))
        """Run to the attempts that it began since the last round began."""
        self._is_making_room = False
        self._told: set[tuple[str, str]] = set()  # kind of refusal and client

    def next_round(self) -> Iterator[IngestMessage]:
        """Begin a round, and yield what waited for it; what is in its way goes."""
        self._rate.next_round(self._state.runs)
        self.grown.clear()
        self._is_making_room = True
        for _ in range(min(len(self.waiting), HELLOS_PER_ROUND)):
            yield self.waiting.popleft()
        self._is_making_room = False

    def wait(self, message: IngestMessage) -> None:
        """Let a HELLO wait for the next round."""
        if len(self.waiting) < MAX_WAITING and len(message.raw) <= MAX_HELLO_BYTES:
            self.waiting.append(message)

    def may_write(self, message: IngestMessage) -> bool:
        """Tell whether who sent a message may write the run it is for; refuse it if not."""
        envelope, client = message.envelope, message.client
        known = self._state.sessions.get(envelope.session)
        hello = known.hello if known is not None else envelope.record
        if client is None or not isinstance(hello, Hello) or client.may_write(hello.run):
            return True
        reason = f"the key of client {client.name!a} may not write run {hello.run[:80]!a}"
        self._refuse(message, "owner", reason)
        return False

    def judge(self, message: IngestMessage, hello: Hello, now_ns: int) -> AdmissionResult:
        """Say whether a HELLO opens a new session; if not it is refused, or waits."""
        malformed = _malformed(hello, len(message.raw))
        if malformed is not None:
            self._refuse(message, *malformed)
            return AdmissionResult.REFUSED
        run = self._state.runs.get(hello.run)
        is_found = run is not None and run.find(hello) is not None
        begins = self._rate.begins(hello, is_found=is_found)
        if begins and self._is_crowded(message, hello.run):
            return AdmissionResult.REFUSED
        client = message.client.name if message.client is not None else ""
        lacking = self._memory.find_lacking(hello, client, begins=begins)
        if lacking is not None and (self._away or not self._is_making_room):
            self.wait(message)  # what may go is known once all runs are in memory
            return AdmissionResult.WAITS
        if begins and not self._may_begin(hello, now_ns):
            return AdmissionResult.WAITS  # until its client says it again
        if lacking is not None:
            lacking = self._memory.make_room(hello, client, begins=begins)
        if lacking is not None:
            self._use[lacking].num_refused += 1
            self._refuse(message, lacking, self._memory.refusal(lacking, hello, client))
            return AdmissionResult.REFUSED
        if not begins:
            self._rate.join(hello)
        self._memory.add(hello, client, begins=begins)
        return AdmissionResult.ADMITTED

    def _may_begin(self, hello: Hello, now_ns: int) -> bool:
        """Count an attempt that begins; tell whether it may now."""
        if self._rate.begin(hello, now_ns):
            self.grown[hello.run] += 1
            return True
        self._use["attempts_per_min"].num_refused += 1
        if self._rate.is_first_told(hello.run):
            limit = self._limits.attempts_per_min
            text = "run %s begins more than %d attempts a minute: further ones wait (told once)"
            logger.warning(text, hello.run, limit)
        return False

    def _is_crowded(self, message: IngestMessage, name: str) -> bool:
        """Refuse a further attempt while one lives that keeps as many as allowed in memory."""
        run = self._state.runs.get(name)
        in_state = 0
        if run is not None:
            in_state = len(list(dropwhile(has_ended, run.attempts)))
        num_kept = in_state + self.grown[name]
        if num_kept < MAX_ATTEMPTS:
            return False
        reason = (
            f"run {name!a} has {num_kept} attempts in memory, of which the oldest still lives; "
            "give this job a run of its own"
        )
        self._refuse(message, "attempts", reason)
        return True

    def _refuse(self, message: IngestMessage, kind: str, reason: str) -> None:
        self._tell(message, kind, reason)
        self._ingest.refuse(kind, reason, message.peer)
        self._ingest.reply(message.peer, message.envelope.session, Refuse(reason=reason))

    def _tell(self, message: IngestMessage, kind: str, reason: str) -> None:
        """Log the first refusal of a kind to each client; the first of all the port logs."""
        client = message.client.name if message.client is not None else ""
        if self._ingest.refused[kind] and client and (kind, client) not in self._told:
            logger.warning("refused to client %a (%s, told once): %s", client, kind, reason)
        self._told.add((kind, client))


def _malformed(hello: Hello, num_bytes: int) -> tuple[str, str] | None:
    """Return what kind of HELLO is not read, and the reason; None if this one is."""
    if not is_run_name(hello.run):
        return "run name", f"run name {hello.run[:40]!a} is not {RUN_NAME_RULE}"
    if num_bytes > MAX_HELLO_BYTES:
        reason = f"a HELLO of {num_bytes} bytes, at most {MAX_HELLO_BYTES} are read"
        return "hello size", reason
    return None
