"""Ranks that fail, are lost or fall silent, and runs that hang: one alert for each attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.evaluation import NOT_WORSE, Context, Evaluation, RuleVerdict
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import Limit, Rule, Steps
from gradwatch_server.core.alerting.sentences import ALL_STOPPED, Trouble
from gradwatch_server.core.alerting.severities import worse
from gradwatch_server.core.alerting.wording import MAX_CAUSE, cut
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.liveness import LOGGED_AFTER_S, Liveness, RankLiveness
from gradwatch_server.core.printable import printable
from gradwatch_wire.health import Severity

MIN_GAPS = 5
"""Gaps between steps from which on it is known what is usual."""

EVALUATIONS = 2.0
"""Times the longest evaluation so far that an evaluation may take before an info."""

MAX_LISTED: Final = 8
"""Steps in a note, and ranks at each of them."""

Once = Annotated[int, Field(ge=1, le=1)]


class LivenessRule(Rule):
    """Ranks that fail, are lost or fall silent, and runs that take no step: one alert of all that.

    * **failed** (critical): the BYE of a rank says that training ended with an exception.
    * **lost** (critical): nothing is heard of a rank for `session_timeout_s`, and no BYE came: it
      was killed, or its node or the network is gone. Records from spill files do not bring it back.
    * **silent** (warning): no sign of life of a rank for `silent_s`, or frames close without it
      that are two steps or more ahead. Told up to 10 s later.
    * **stalled**: no step for a long time, though processes of the run live: a hang. Info after
      `info_s` or `info_factor` times the median of the last 512 gaps between steps; a warning after
      `warning_s` or `warning_factor` times the largest gap so far, the first five left out, as
      checkpoints and evaluations are gaps, too; critical after `critical_s`. Before five gaps only
      the last one holds. While a rank says that its model is not in training mode, the gaps in
      which one did are the measure. The time is what the ranks say of themselves (`since_s` in
      BEAT); it is told up to 5 s late.

    An attempt has one alert, in the group `run` and without layers. `origin.kind` is one of these
    words, or `failed and lost` where both came within 5 s; a change of it is
    told. `origin.ranks` are the ranks that it is about, of a hang those with the lowest last step
    (`origin.step`); `origin.notes` has the last step of each rank. The cause of a hang names the
    functions of the ranks, by their Python stacks. It is over when ranks are heard of again, have
    caught up, or attach in a later attempt.
    """

    name = "liveness"
    takes = (Liveness,)
    spoils_steps = False
    formula = """
        failed: the reason in a BYE is `exception`. Lost: no sign of life for `session_timeout_s`.
        Silent: none for `silent_s`, or `behind_frames` frames in a row that closed two steps or
        more ahead. Stalled, with t the time since the last step: `t >= max(info_s, info_factor *
        median gap)`, then `t >= max(warning_s, warning_factor * largest gap)`, then `t >=
        critical_s`.
    """
    tuning = """
        Long evaluations and checkpoints are learnt from the first one on. Raise `warning_s` if
        the first one takes longer than 5 minutes, `critical_s` with the timeout of collectives,
        `silent_s` where the network is away for longer. Turn the rule off for runs that are
        killed on purpose: `runs = ["!preemptible-*"]`.
    """
    source = """
        A crash is the first thing that a person wants to be told of. A process that is killed
        says nothing, and the others wait for it in a collective. NVRx multiplies the largest
        interval by 5 likewise, and watches beats for restarts, as torchft does. Times the median
        alone would call each evaluation and each checkpoint a stall.
    """

    for_steps: Once = Field(1, description="It fires at once; no other value is allowed.")
    clear_steps: Once = Field(1, description="It is resolved at once; no other value is allowed.")
    severity: Severity = Field(Severity.CRITICAL, description="The most that it rises to.")
    silent_s: Limit = Field(
        10.0, description="Seconds without any sign of life after which a rank is silent."
    )
    behind_frames: Steps = Field(
        8, description="Frames in a row, two steps or more ahead of a rank, that leave it behind."
    )
    info_s: Limit = Field(30.0, description="Seconds without a step before the first alert.")
    info_factor: Limit = Field(10.0, description="Times the median gap before the first alert.")
    warning_s: Limit = Field(300.0, description="Seconds without a step before it is a warning.")
    warning_factor: Limit = Field(5.0, description="Times the largest gap before it is a warning.")
    critical_s: Limit = Field(1800.0, description="Seconds without a step before it is critical.")

    def raised(self, observation: Liveness, context: Context) -> BoolArray:
        """Return whether anything is wrong, (1,)."""
        return np.array([self._trouble(observation) is not None])

    def evaluate(
        self, observation: Liveness, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        trouble = self._trouble(observation)
        is_raised = trouble is not None
        yield Evaluation(
            group="run",
            step=observation.step,
            received_ns=observation.received_ns,
            verdict=RuleVerdict.of_run(raised=is_raised, held=is_raised),
            names=(),
            origin=lambda _: self._origin(observation, trouble or Trouble.STALLED),
            severity=lambda _: self._severity(observation),
            extend=partial(self._extended, observation=observation, trouble=trouble),
            key=self._key(observation, trouble),
            excess=NOT_WORSE,
        )

    def limits_s(self, observation: Liveness) -> dict[Severity, float]:
        """Return the seconds without a step after which it has each severity, the least first."""
        gaps = observation.gaps
        if gaps.count < MIN_GAPS:
            return {Severity.CRITICAL: self.critical_s}
        evaluating = observation.evaluating
        largest_s = gaps.largest_evaluation_s if evaluating else gaps.largest_s
        warning_s = max(self.warning_s, self.warning_factor * largest_s)
        info_s = max(self.info_s, self.info_factor * gaps.median_s)
        if evaluating:
            info_s = max(info_s, EVALUATIONS * largest_s) if largest_s else warning_s
        return {
            Severity.INFO: min(info_s, warning_s),
            Severity.WARNING: warning_s,
            Severity.CRITICAL: max(self.critical_s, warning_s),
        }

    def _trouble(self, observation: Liveness) -> Trouble | None:
        lost_s = max((rank.silent_s for rank in observation.ranks if rank.is_lost), default=None)
        failed_s = max(
            (rank.silent_s for rank in observation.ranks if rank.has_failed), default=None
        )
        if failed_s is not None and lost_s is not None:
            # The last sign of life in the log may be so much older than the last one there was.
            is_lost_first = lost_s > failed_s + LOGGED_AFTER_S
            return Trouble.LOST if is_lost_first else Trouble.FAILED_AND_LOST
        if failed_s is not None or lost_s is not None:
            return Trouble.FAILED if lost_s is None else Trouble.LOST
        if self._silent(observation):
            return Trouble.SILENT
        return Trouble.STALLED if self._passed(observation) else None

    def _silent(self, observation: Liveness) -> list[RankLiveness]:
        after_s = self.silent_s + LOGGED_AFTER_S
        return [
            rank
            for rank in observation.ranks
            if rank.lives and (rank.silent_s > after_s or rank.behind_frames >= self.behind_frames)
        ]

    def _passed(self, observation: Liveness) -> list[tuple[Severity, float]]:
        """Return the limits of a hang that are passed, the least first."""
        idle_s = observation.idle_s or 0.0
        return [limit for limit in self.limits_s(observation).items() if idle_s > limit[1]]

    def _severity(self, observation: Liveness) -> Severity:
        highest = Severity.INFO
        if any(rank.is_lost or rank.has_failed for rank in observation.ranks):
            highest = Severity.CRITICAL
        elif self._silent(observation):
            highest = Severity.WARNING
        for severity, _ in self._passed(observation):
            highest = worse(highest, severity)
        return min(highest, self.severity, key=list(Severity).index)

    def _key(self, observation: Liveness, trouble: Trouble | None) -> str:
        """Return what tells two alerts apart: the same rank may go at the same step again."""
        if trouble is None or trouble is Trouble.STALLED:
            epoch, step = observation.place
            return f"run/{epoch}/{step}"
        affected = self._affected(observation, trouble)
        first = min(affected, key=lambda rank: (rank.since_ns, rank.rank))
        return f"run/{first.rank}/{first.since_ns}"

    def _affected(self, observation: Liveness, trouble: Trouble) -> list[RankLiveness]:
        match trouble:
            case Trouble.LOST:
                return [rank for rank in observation.ranks if rank.is_lost]
            case Trouble.FAILED | Trouble.FAILED_AND_LOST:
                return [rank for rank in observation.ranks if rank.has_failed]
            case Trouble.SILENT:
                return self._silent(observation)
        living = [rank for rank in observation.ranks if rank.lives]
        lowest = min((rank.step for rank in living), default=-1)
        return [rank for rank in living if rank.step == lowest]

    def _origin(self, observation: Liveness, trouble: Trouble) -> Origin:
        """Return which ranks it is about, and the lowest last step of them."""
        affected = self._affected(observation, trouble)
        ranks = tuple(rank.rank for rank in affected)
        value, threshold, detail, cause = float(len(affected)), None, "", ""
        notes = _last_steps(observation)
        if trouble is Trouble.SILENT:
            value, threshold = max(rank.silent_s for rank in affected), self.silent_s
            detail = f"others: {max(rank.step for rank in observation.ranks)}"
        elif trouble is Trouble.FAILED_AND_LOST:
            detail = _listed([rank.rank for rank in observation.ranks if rank.is_lost])
        elif trouble is Trouble.STALLED:
            passed = self._passed(observation)
            value = observation.idle_s or 0.0
            threshold = passed[-1][1] if passed else min(self.limits_s(observation).values())
            stuck = _stuck(observation)
            cause = _joined(stuck, MAX_CAUSE)
            notes += (f"stacks: {', '.join(stuck)}",) if stuck else ()
            living = [rank for rank in observation.ranks if rank.lives]
            if len(ranks) < len(living):
                detail = f"others at step {max(rank.step for rank in living)}"
            elif len(living) > 1:
                detail = ALL_STOPPED
        return Origin(
            step=max(min((rank.step for rank in affected), default=-1), 0),
            rank=ranks[0] if len(ranks) == 1 else None,
            ranks=ranks,
            layer=None,
            kind=trouble.value,
            value=value,
            threshold=threshold,
            notes=notes,
            detail=detail,
            cause=cause,
        )

    def _extended(self, origin: Origin, observation: Liveness, trouble: Trouble | None) -> Origin:
        """Return *origin* with how it is by now; it stays where it began, unless it is another."""
        if trouble is None:
            return origin
        if origin.kind == Trouble.LOST and trouble is Trouble.FAILED_AND_LOST:
            trouble = Trouble.LOST  # it was known before anybody failed
        now = self._origin(observation, trouble)
        if origin.kind != trouble:
            return now
        if trouble is Trouble.STALLED:
            worst = max(origin.value, now.value)
            grown = replace(origin, value=worst, threshold=now.threshold, cause=now.cause)
            return replace(grown, notes=now.notes)
        ranks = tuple(sorted({*origin.ranks, *now.ranks}))
        one = ranks[0] if len(ranks) == 1 else None
        return replace(origin, rank=one, ranks=ranks, value=now.value, detail=now.detail)


def _last_steps(observation: Liveness) -> tuple[str, ...]:
    """Return the last step of each rank as a note, the lowest first; none of a single rank."""
    ranks_at: dict[int, list[int]] = {}
    for rank in observation.ranks:
        ranks_at.setdefault(rank.step, []).append(rank.rank)
    if len(observation.ranks) < 2:
        return ()
    parts = [f"{_step(step)} {_listed(ranks_at[step])}" for step in sorted(ranks_at)[:MAX_LISTED]]
    return (f"last step of each rank: {', '.join(parts)}",)


def _stuck(observation: Liveness) -> list[str]:
    """Return in which functions the ranks of a hang are, that of the fewest ranks first."""
    ranks_in: dict[str, list[int]] = {}
    for rank in observation.ranks:
        if rank.stack:
            function, _, place = printable(rank.stack.partition("\n")[0]).partition(" ")
            where = f"{function} at {place.rpartition('/')[2]}"
            ranks_in.setdefault(where, []).append(rank.rank)
    groups = sorted(ranks_in.items(), key=lambda group: len(group[1]))[:MAX_LISTED]
    return [f"{_listed(ranks)} in {where}" for where, ranks in groups]


def _joined(parts: Sequence[str], limit: int) -> str:
    """Return as many parts as so many characters have room for; of a single long one its ends."""
    text = cut(parts[0], limit) if parts else ""
    for part in parts[1:]:
        if len(text) + len(part) + 2 > limit:
            break
        text = f"{text}, {part}"
    return text


def _step(step: int) -> str:
    return "none of" if step < 0 else f"{step} of"


def _listed(ranks: Sequence[int]) -> str:
    word = "rank" if len(ranks) == 1 else "ranks"
    more = ", …" if len(ranks) > MAX_LISTED else ""
    return f"{word} {', '.join(map(str, ranks[:MAX_LISTED]))}{more}"
