"""Scores of findings: in a fork beside its label; in a healthy run all are false."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.alerts.finding import Finding, incidents
from benchmarks.alerts.recorded import FaultLabel, Split

NEAR_STEPS: Final = 2
"""A sudden fault's origin is right this close to its first step."""

HUNDRED_THOUSAND: Final = 100_000

CAUSES: Final = {"learning_rate": ("learning rate",), "learning_rate_ramp": ("learning rate",)}
"""Kind of fault whose cause is in the numbers of the run to words of a right one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthy:
    """Findings in a healthy run, all of them false.

    Args:
        run: Name of the run.
        family: Its family.
        split: What it is for.
        steps: How many it has.
        findings: What was said.
    """

    run: str
    family: str
    split: Split
    steps: int
    findings: tuple[Finding, ...]

    @property
    def warnings(self) -> list[Finding]:
        return [each for each in self.findings if each.is_warning]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Findings about one fault.

    Args:
        run: Name of the fork.
        split: What it is for.
        world: Ranks of the run.
        fault: What was done.
        findings: What was said from its first step on.
        by_chance: Whether in the healthy run there was a warning in the same steps, too.
        doubled_step: First step from which on the total norm was twice that of the healthy run, of
            a gradual fault; None if it never was.
        spacing: Of the steps that were looked at.
    """

    run: str
    split: Split
    world: int
    fault: FaultLabel
    findings: tuple[Finding, ...]
    by_chance: bool
    doubled_step: int | None = None
    spacing: int = 1

    @property
    def warnings(self) -> list[Finding]:
        """Alerts that are meant to wake somebody, in the order of their steps."""
        return [each for each in self.findings if each.is_warning]

    @property
    def found(self) -> bool:
        return bool(self.warnings)

    @property
    def named(self) -> bool:
        """Whether one was by a rule that is right about it."""
        return any(each.rule in self.fault.rules for each in self.warnings)

    @property
    def told(self) -> bool:
        """Whether a rule that is right about it said anything, be it as info."""
        return any(each.rule in self.fault.rules for each in self.findings)

    @property
    def delay(self) -> int | None:
        """Steps from the first that differs to the first warning, None if there is none."""
        return self.first[0].step - self.fault.first_step if self.found else None

    @property
    def first(self) -> list[Finding]:
        """The warnings that came first, at one step."""
        warnings = self.warnings
        return [each for each in warnings if each.step == warnings[0].step]

    # Where it began. None: there is nothing to be right about, or nobody to be it.

    @property
    def step_right(self) -> bool | None:
        """Whether the first warning says at which step it began.

        Of what is only looked at now and then, whether it began after the last time it was right.
        """
        if not self.found:
            return None
        says = next((each for each in self.first if each.origin_step is not None), None)
        if says is None or says.origin_step is None:
            return False
        if says.last_good_step is not None:
            return says.last_good_step < self.fault.first_step <= says.origin_step
        late = says.origin_step - self.fault.first_step
        if self.doubled_step is not None and 0 <= late <= self.doubled_step - self.fault.first_step:
            return True
        return abs(late) <= self.tolerance

    @property
    def tolerance(self) -> float:
        """Steps by which the origin may be off.

        Of a gradual fault it is where the norm was within a factor of 2 of what it was, by the
        factor that it grows by or as recorded (`doubled_step`), or a quarter of the time it took to
        be told, whichever is later.
        """
        near = max(NEAR_STEPS, self.spacing)
        if not self.fault.is_gradual:
            return near
        growth = abs(math.log(self.fault.factor)) if self.fault.factor else 0.0
        doubled = math.log(2.0) / growth if growth else 0.0
        return max(near, doubled, (self.delay or 0) / 4)

    @property
    def module_right(self) -> bool | None:
        """Whether the first warning that names a layer names one of the damaged module."""
        if not self.found or self.fault.module is None:
            return None
        layer = self._layer()
        return layer is not None and layer.rpartition(".")[0] == self.fault.module

    @property
    def layer_right(self) -> bool | None:
        """Whether it names a layer in which it began."""
        if not self.found or not self.fault.layers:
            return None
        return self._layer() in self.fault.layers

    @property
    def is_misled(self) -> bool:
        """Whether it names a layer of a module that was not damaged."""
        return self.module_right is False and self._layer() is not None

    @property
    def origin_right(self) -> bool | None:
        """Whether step, module and rank are right, each where there is one to be right about."""
        if not self.found:
            return None
        return all(
            each is not False for each in (self.step_right, self.module_right, self.rank_right)
        )

    @property
    def origin_wrong(self) -> bool | None:
        """Whether it names a module or a rank that the fault did not begin in."""
        if not self.found:
            return None
        names_other = self._rank() is not None and self.rank_right is False
        return self.is_misled or names_other or bool(self.blames_rank)

    @property
    def cause_right(self) -> bool | None:
        """Whether the first cause that a warning states is that of the fault, None if none is."""
        cause = next((each.cause for each in self.warnings if each.cause), "")
        return any(word in cause for word in CAUSES.get(self.fault.kind, ())) if cause else None

    @property
    def has_cause(self) -> bool | None:
        """Whether a warning states a cause, None where none is in the numbers."""
        if not self.found or self.fault.kind not in CAUSES:
            return None
        return any(each.cause for each in self.warnings)

    @property
    def rank_right(self) -> bool | None:
        """Whether the first warning that names a rank names the one it began on.

        Where no number tells which rank is wrong, whether it names none.
        """
        if not self.found or self.world == 1 or not self.fault.ranks:
            return None
        return self._rank() is None if self.is_rank_unknown else self._rank() in self.fault.ranks

    @property
    def is_rank_unknown(self) -> bool:
        """Whether the numbers cannot tell the rank: two ranks differ, and neither stands out.

        Of an element that was damaged after the reduction on one of two ranks it is so: there is
        no majority, and neither has what it had before the reduction.
        """
        return self.world == 2 and self.fault.name == "bit_error"

    @property
    def blames_rank(self) -> bool | None:
        """Whether it names a rank though it began on all."""
        if not self.found or self.world == 1 or self.fault.ranks:
            return None
        return self._rank() is not None

    def _layer(self) -> str | None:
        return next((each.layer for each in self.first if each.layer is not None), None)

    def _rank(self) -> int | None:
        return next((each.rank for each in self.first if each.rank is not None), None)


def judged(
    run: str,
    split: Split,
    world: int,
    fault: FaultLabel,
    findings: Sequence[Finding],
    healthy: Sequence[Finding],
    steps: int,
    doubled_step: int | None = None,
    spacing: int = 1,
) -> Judged:
    """Return what was said of a fork.

    Args:
        run: Its name.
        split: What it is for.
        world: Ranks of the run.
        fault: What was done.
        findings: What was said of it, maybe also before the fault showed.
        healthy: What was said of its healthy parent.
        steps: Number of the fork's last step and one.
        doubled_step: As in `Judged`.
        spacing: As in `Judged`.
    """
    span = range(fault.first_step, steps)
    own = sorted((each for each in findings if each.step >= span.start), key=lambda each: each.step)
    by_chance = any(each.is_warning and each.step in span for each in healthy)
    return Judged(
        run=run,
        split=split,
        world=world,
        fault=fault,
        findings=tuple(own),
        by_chance=by_chance,
        doubled_step=doubled_step,
        spacing=spacing,
    )


@dataclass(frozen=True, slots=True)
class Share:
    """A share of some cases.

    Args:
        count: Cases in which it holds.
        cases: All cases.
    """

    count: int
    cases: int

    @classmethod
    def of(cls, flags: Iterable[bool | None]) -> Share:
        known = [flag for flag in flags if flag is not None]
        return cls(sum(known), len(known))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the true share (Wilson 1927)."""
        share, z, n = self.count / self.cases, 1.96, self.cases
        middle = (share + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Rate of events in healthy steps.

    Args:
        count: How often.
        steps: In how many steps.
    """

    count: int
    steps: int

    @property
    def per_100k(self) -> float:
        """Per 100,000 steps."""
        return self.count * HUNDRED_THOUSAND / max(self.steps, 1)

    @property
    def limit_per_100k(self) -> float:
        """Upper end of the 95 % interval of the true rate, per 100,000 steps."""
        return poisson_limit(self.count) * HUNDRED_THOUSAND / max(self.steps, 1)


def poisson_limit(count: int, confidence: float = 0.95) -> float:
    """Return the mean above which *count* or fewer events are too unlikely.

    It is the exact one-sided limit for a Poisson process: 3.0 for no event (the rule of three).
    """
    low, high = float(count), 10.0 + 3.0 * count
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if _at_most(count, middle) > 1.0 - confidence:
            low = middle
        else:
            high = middle
    return high


def _at_most(count: int, mean: float) -> float:
    """Return the probability of at most *count* events of a Poisson process."""
    logs = (k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(count + 1) if mean > 0)
    return math.fsum(map(math.exp, logs)) if mean > 0 else 1.0


def false_alarms(runs: Iterable[Healthy], *, info: bool = False) -> Rate:
    """Return how often there was an incident in healthy runs.

    Args:
        runs: The runs.
        info: Count what was told as info instead of warnings.
    """
    count = steps = 0
    for run in runs:
        steps += run.steps
        count += len(incidents(each for each in run.findings if each.is_warning != info))
    return Rate(count=count, steps=steps)


def alerts_per_incident(runs: Iterable[Healthy], faults: Iterable[Judged]) -> float:
    """Return the mean number of warnings of an incident; a fault that was found is one."""
    sizes = [len(each) for run in runs for each in incidents(run.warnings)]
    sizes += [len(each.warnings) for each in faults if each.found]
    return sum(sizes) / len(sizes) if sizes else math.nan
