"""Attempts under one name: which is current, and which one a session belongs to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.session import RankSession
from gradwatch_wire import Hello
from gradwatch_wire.session.replayed import is_replayed

MAX_LIVE: Final = 8
"""Attempts of a run that are judged at the same time, the newest."""

MAX_SHOWN: Final = 8
"""Attempts of which readers see the last frames, the newest and those that are judged."""

RETURN_NS: Final = 3_600_000_000_000
"""An attempt that was lost may come back this long after it was heard of last, or after the
aggregator itself was away: a network that is away for a while. After that, one that begins takes
its place."""


def is_same_job(one: str, other: str) -> bool:
    """Tell whether two launches are of one job, whichever of its restarts they are."""
    return one.partition("/")[0] == other.partition("/")[0]


def precedes(one: str, other: str) -> bool:
    """Tell whether the launch *one* is of the same job as *other*, and was restarted less often."""
    earlier, later = _parse(one), _parse(other)
    if earlier is None or later is None or earlier[0] != later[0]:
        return False
    return earlier[1] < later[1]


def _parse(job: str) -> tuple[tuple[str, str], int] | None:
    """Return `(id, rendezvous)` and restarts; None if the job names neither, or does not count."""
    number, _, rest = job.partition("/")
    restarts, _, rendezvous = rest.partition("/")
    if not (number or rendezvous) or not restarts.isdecimal():
        return None
    return (number, rendezvous), int(restarts)


class AttemptHistory:
    """Attempts of a run, of which the newest that lives is current."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self._judged: list[Attempt] = []
        self._num_known = 0  # attempts that there were when these were found

    @property
    def judged(self) -> Sequence[Attempt]:
        """The attempts that are not retired, oldest first."""
        if self._num_known != len(self.attempts):
            self._judged = [attempt for attempt in self.attempts if not attempt.retired]
            self._num_known = len(self.attempts)
        return self._judged

    @property
    def is_expected(self) -> bool:
        return any(
            attempt.lives or attempt.waiting or attempt.may_return for attempt in self.judged
        )

    @property
    def shown(self) -> Sequence[Attempt]:
        """The attempts of which readers see the last frames, oldest first."""
        older = [attempt for attempt in self.attempts[:-MAX_SHOWN] if not attempt.retired]
        return older + self.attempts[-MAX_SHOWN:]

    @property
    def live(self) -> Sequence[Attempt]:
        """The attempts that live, oldest first.

        One of which nothing was heard since another began is taken for that one's past, although
        it may not yet be known that it was killed.
        """
        newest = self._newest.started_ns
        return [
            attempt
            for attempt in self.judged
            if attempt.lives
            and not attempt.replayed
            and (attempt.signs.heard_ns > newest or attempt is self._newest)
        ]

    @property
    def current(self) -> Attempt:
        """The newest attempt that lives; if none does, the one that was heard of last."""
        newest = self._newest
        if newest.lives or len(self.judged) < 2:
            return newest
        live = self.live
        if live:
            return live[-1]
        alike = [attempt for attempt in self.judged if attempt.replayed == newest.replayed]
        return max(alike or [newest], key=lambda one: (one.signs.heard_ns, one.number))

    @property
    def _newest(self) -> Attempt:
        # What comes from a spill file is of the past, and so is a process of an earlier launch that
        # attaches only now: the training that runs stays current.
        judged = self.judged or self.attempts[-1:]
        trained = [attempt for attempt in judged if not attempt.replayed]
        if len(trained) > 1:
            timely = (attempt for attempt in reversed(trained) if not self._is_late(attempt))
            return next(timely, trained[-1])
        return trained[0] if trained else judged[-1]

    def _is_late(self, attempt: Attempt) -> bool:
        """Tell whether an attempt is of an earlier launch than one that began before it and lives.

        Its job says so, or there was an attempt of the same launch before that one.
        """
        living = (each for each in self.judged if each.lives and each.number < attempt.number)
        return any(self._began_before(attempt.job, each) for each in living)

    def _began_before(self, job: str, other: Attempt) -> bool:
        if not job or job == other.job:
            return False
        earlier = (attempt.job for attempt in self.attempts if attempt.number < other.number)
        return precedes(job, other.job) or job in earlier

    def attempt_of(self, session: RankSession) -> Attempt:
        newest = self.attempts[-1]
        if newest.number == session.attempt:  # so it is for nearly every record
            return newest
        return self.attempts[bisect_left(self.attempts, session.attempt, key=attrgetter("number"))]

    def find(self, hello: Hello) -> Attempt | None:
        """Return the attempt that a new session belongs to, None if that is another one."""
        candidates = self.attempts if is_replayed(hello) else self.judged
        fitting = [attempt for attempt in candidates if not attempt.is_another(hello)]
        if not fitting:
            return None
        # A lost one that misses a rank is no place for the rank of a launch that came after it.
        newest = max(attempt.number for attempt in candidates if attempt.is_of_launch(hello))
        joined = (
            attempt for attempt in reversed(fitting) if attempt.lives or attempt.number == newest
        )
        return next(joined, None)

    def begin(self, attempt: Attempt, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Add an attempt, and retire those that have ended, or will hardly come back."""
        if attempt.replayed and any(not attempt.replayed for attempt in self.judged):
            yield from attempt.retire(now_ns, rules)
        else:
            if self.judged and not attempt.replayed:
                attempt.closed.predecessor = self.current.closed.as_predecessor()
            rest = [each for each in self.judged if each.replayed == attempt.replayed]
            rest = [each for each in rest if each.lives or _may_return(each, attempt)]
            rest.sort(key=lambda attempt: (attempt.lives, attempt.signs.heard_ns))
            kept = rest[-MAX_LIVE + 1 :]
            for each in self.judged:
                if each not in kept:
                    yield from each.retire(now_ns, rules)
        self.adopt(attempt)
        for each in self.attempts[-MAX_SHOWN - 1 : -MAX_SHOWN]:
            if each.retired:
                each.closed.forget_frames()

    def adopt(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        self._num_known = 0

    def succeed(self, attempt: Attempt, hello: Hello, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Note that a rank attached again: what earlier attempts miss of it has come back."""
        if attempt.replayed:
            return
        for each in self.attempts[-MAX_LIVE - 1 :]:
            session = each.sessions.get(hello.rank)
            replaces = is_same_job(each.job, hello.job) or not each.lives
            if each.number < attempt.number and session and replaces:
                session.is_replaced = True
                if each.signs.is_troubled:
                    each.revision += 1
                    yield from each.judge_liveness(now_ns, rules)

    def forget(self, attempts: int) -> list[RankSession]:
        """Let go of the attempts up to a number, and return their sessions."""
        gone = [attempt for attempt in self.attempts if attempt.number <= attempts]
        self.attempts = [attempt for attempt in self.attempts if attempt.number > attempts]
        self._num_known = 0
        return [session for attempt in gone for session in attempt.sessions.values()]


def _may_return(attempt: Attempt, begins: Attempt) -> bool:
    """Tell whether an attempt is lost, rather than over: not for long, and not restarted since."""
    since_ns = max(attempt.signs.heard_ns, attempt.signs.resumed_ns)
    is_recent = begins.started_ns - since_ns < RETURN_NS
    return attempt.may_return and is_recent and not precedes(attempt.job, begins.job)
