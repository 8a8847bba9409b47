"""Runs that take no step any more though their processes live: hangs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from pydantic import Field

from gradwatch_server.core.alerting.evaluation import NOT_WORSE, Context, Evaluation, Verdict
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import Limit
from gradwatch_server.core.alerting.rules.rank import LivenessRule, last_steps
from gradwatch_server.core.alerting.sentences import ALL_STOPPED
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.liveness import Liveness
from gradwatch_wire.health import Severity

MIN_GAPS = 5
"""Gaps between steps from which on it is known what is usual."""

EVALUATIONS = 2.0
"""An evaluation may take so many times the longest one so far before it is told as info."""


class RunStalledRule(LivenessRule):
    """No step for a long time, though processes of the run live: a hang.

    The time is counted from the last step of the rank that took one last, by what the ranks say of
    themselves (`since_s` in BEAT), and while the aggregator was away it does not count unless they
    say so. What is long depends on the run: `info` comes after `info_s`, or `info_factor` times the
    median of the last 512 gaps between steps; `warning` after `warning_s`, or `warning_factor`
    times the largest gap so far, the first five left out, as checkpoints and evaluations are gaps,
    too; `critical` after `critical_s`, and not before the warning. Before five gaps only the last
    one holds. While a rank says that its model is not in training mode, the gaps in which one did
    are the measure.

    It is about the run: its alert has the group `run` and no layers, and rises from `info` to
    `critical`; the status of the run is `stalled` from the first on. It is resolved at the next
    step. `origin.ranks` are the ranks with the lowest last step: the others may wait for them. Each
    is told up to 5 s later than it says, as signs of life are logged every 4 s; where two limits
    are closer than that, the first may be passed over.
    """

    name = "run_stalled"
    follows = ("rank_lost", "run_failed")
    formula = """
        with t the time since the last step: `t >= max(info_s, info_factor * median gap)`, then
        `t >= max(warning_s, warning_factor * largest gap)`, then `t >= critical_s`.
    """
    tuning = """
        Long evaluations and checkpoints are learnt from the first one on. Raise `warning_s` if the
        first one takes longer than 5 minutes; raise `critical_s` with the timeout of collectives.
    """
    source = """
        NVRx multiplies the largest interval by 5 likewise. Times the median alone would call each
        evaluation and each checkpoint a stall.
    """

    severity: Severity = Field(Severity.CRITICAL, description="The most that it rises to.")
    info_s: Limit = Field(30.0, description="Seconds without a step before it is told at all.")
    info_factor: Limit = Field(10.0, description="Times the median gap before it is told at all.")
    warning_s: Limit = Field(300.0, description="Seconds without a step before it is a warning.")
    warning_factor: Limit = Field(5.0, description="Times the largest gap before it is a warning.")
    critical_s: Limit = Field(1800.0, description="Seconds without a step before it is critical.")

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

    def raised(self, observation: Liveness, context: Context) -> BoolArray:
        """Return whether no step came for too long, (1,)."""
        return self._verdict(observation).raised

    def _verdict(self, observation: Liveness) -> Verdict:
        idle_s = observation.idle_s
        if idle_s is None:  # if all ranks are gone, it stays as it stood
            return Verdict.of_run(raised=False, held=False, seen=observation.is_over)
        raised = idle_s > min(self.limits_s(observation).values())
        return Verdict.of_run(raised=raised, held=raised)

    def evaluate(
        self, observation: Liveness, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        """Yield the one evaluation."""
        yield Evaluation(
            group="run",
            step=observation.step,
            received_ns=observation.received_ns,
            verdict=self._verdict(observation),
            names=(),
            origin=lambda _: self.origin(observation),
            severity=lambda _: self._severity(observation),
            extend=partial(self._extended, observation=observation),
            key=f"run/{observation.place}",
            excess=NOT_WORSE,
        )

    def _severity(self, observation: Liveness) -> Severity:
        idle_s = observation.idle_s or 0.0
        passed = [own for own, limit_s in self.limits_s(observation).items() if idle_s > limit_s]
        order = list(Severity)
        found = passed[-1] if passed else Severity.INFO
        return min(found, self.severity, key=order.index)

    def _limit_s(self, observation: Liveness) -> float:
        """Return the largest limit that is passed."""
        idle_s = observation.idle_s or 0.0
        limits = self.limits_s(observation).values()
        return max((own for own in limits if idle_s > own), default=min(limits))

    def origin(self, observation: Liveness) -> Origin:
        """Return which ranks are least far, and for how long no step came."""
        living = [rank for rank in observation.ranks if rank.lives]
        lowest = min((rank.step for rank in living), default=-1)
        ranks = tuple(rank.rank for rank in living if rank.step == lowest)
        detail = ""
        if len(ranks) < len(living):
            detail = f"others at step {max(rank.step for rank in living)}"
        elif len(living) > 1:
            detail = ALL_STOPPED
        return Origin(
            step=max(lowest, 0),
            rank=ranks[0] if len(ranks) == 1 else None,
            ranks=ranks,
            layer=None,
            kind=None,
            value=observation.idle_s or 0.0,
            threshold=self._limit_s(observation),
            notes=last_steps(observation),
            detail=detail,
        )

    def _extended(self, origin: Origin, observation: Liveness) -> Origin:
        """Return *origin* with how long it has lasted by now."""
        value = max(origin.value, observation.idle_s or 0.0)
        return replace(origin, value=value, threshold=self._limit_s(observation))
