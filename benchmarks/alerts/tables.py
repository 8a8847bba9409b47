"""The tables: each set of rules, each kind of fault, each of our rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from benchmarks.alerts.evaluation import GRADWATCH, Results
from benchmarks.alerts.scoring import Judged, Rate, alerts_per_incident, false_alarms
from benchmarks.report import quantile

Row: TypeAlias = Sequence[str]

NOTHING: Final = "-"

FOUND_COLUMNS: Final = (
    "rules",
    "harmful",
    "all",
    "named",
    "or info",
    "by chance",
    "steps",
    "false alarms",
)
FOUND_NOTES: Final = (
    "harmful, all: share of the faults that a rule of ours is about for which there was a warning",
    "harmful are those that made the loss worse than chance",
    "named: there was one by a rule that is right about the fault; or info: or what wakes nobody",
    "by chance: share of the same steps of the healthy runs in which there was a warning, too",
    "steps: until the first warning, median / nine tenths",
    "false alarms: incidents with a warning per 100,000 healthy steps (95 %: it is less)",
)
SAID_COLUMNS: Final = (
    "rules",
    "alerts",
    "false alerts",
    "false info",
    "step",
    "module",
    "layer",
    "rank",
    "misled",
    "blamed",
)
SAID_NOTES: Final = (
    "alerts: warnings per incident; those closer than 32 steps are one, and so are all of a fault",
    "false alerts: warnings per 100,000 healthy steps; false info: incidents of what wakes nobody",
    "step, module, layer, rank: share of faults found whose first warning was right about it",
    "step: right within 2; if gradual, within a quarter of the delay or while the norm doubled",
    "of weights, compared every 100 steps, a step is right between the two comparisons",
    "rank: of a wrong element on one of two ranks no number says whose it is: none is right there",
    "misled: of what began in one module, another one was named; blamed: a rank, though it was all",
)


def about(results: Results) -> str:
    """Say what was judged."""
    steps = sum(run.steps for run in results.healthy)
    harmful = sum(each.fault.is_harmful for each in results.faults)
    kinds = len({each.fault.kind for each in results.faults})
    workloads = len({run.workload for run in results.healthy})
    return (
        f"{len(results.healthy)} runs of {workloads} trainings, {steps:,} healthy steps; "
        f"{len(results.faults)} faults of {kinds} kinds, {harmful} of them harmful"
    )


def found(results: Mapping[str, Results]) -> list[Row]:
    """Return a row for each set of rules: what was found, and what was not there."""
    rows: list[Row] = []
    for name, own in results.items():
        ours = [each for each in own.faults if each.fault.rules]
        rows.append(
            (
                name,
                _share(each.found for each in ours if each.fault.is_harmful),
                _share(each.found for each in ours),
                _share(each.named for each in ours),
                _share(each.told for each in ours),
                _share(each.by_chance for each in ours),
                delays(ours),
                _rate(false_alarms(own.healthy)),
            )
        )
    return rows


def said(results: Mapping[str, Results]) -> list[Row]:
    """Return a row for each set of rules: how often it said something, and how right it was."""
    rows: list[Row] = []
    for name, own in results.items():
        ours = [each for each in own.faults if each.fault.rules]
        steps = sum(run.steps for run in own.healthy)
        alerts = Rate(count=sum(len(run.warnings) for run in own.healthy), steps=steps)
        per_incident = alerts_per_incident(own.healthy, own.faults)
        rows.append(
            (
                name,
                NOTHING if math.isnan(per_incident) else f"{per_incident:.2f}",
                f"{alerts.per_100k:.1f}",
                _rate(false_alarms(own.healthy, info=True)),
                _share(each.step_right for each in ours),
                _share(each.module_right for each in ours),
                _share(each.layer_right for each in ours),
                _share(each.rank_right for each in ours),
                _share(each.is_misled for each in ours if each.module_right is not None),
                _share(each.blames_rank for each in ours),
            )
        )
    return rows


def kind_columns(rule_sets: Iterable[str]) -> tuple[str, ...]:
    """Return the heads of `by_kind`."""
    others = (name for name in rule_sets if name != GRADWATCH)
    return ("fault", "forks", "harmful", "found", "named", "or info", "steps", *others)


def by_kind(results: Mapping[str, Results]) -> list[Row]:
    """Return a row for each kind of fault: what was found of it, ours first."""
    ours = results[GRADWATCH].faults
    rows: list[Row] = []
    for kind in sorted({each.fault.kind for each in ours}):
        own = [each for each in ours if each.fault.kind == kind]
        named_by_none = not any(each.fault.rules for each in own)
        rows.append(
            (
                kind,
                str(len(own)),
                str(sum(each.fault.is_harmful for each in own)),
                _count(each.found for each in own),
                NOTHING if named_by_none else _count(each.named for each in own),
                NOTHING if named_by_none else _count(each.told for each in own),
                delays(own),
                *(
                    _count(each.found for each in theirs.faults if each.fault.kind == kind)
                    for name, theirs in results.items()
                    if name != GRADWATCH
                ),
            )
        )
    return rows


def delays(faults: Iterable[Judged]) -> str:
    """Return median and nine tenths of the steps until the first warning."""
    steps = [float(each.delay) for each in faults if each.delay is not None]
    if not steps:
        return NOTHING
    return f"{quantile(steps, 0.5):.0f} / {quantile(steps, 0.9):.0f}"


def _share(flags: Iterable[bool | None]) -> str:
    known = [flag for flag in flags if flag is not None]
    return f"{sum(known) / len(known):.0%}".replace("%", " %") if known else NOTHING


def _count(flags: Iterable[bool]) -> str:
    return str(sum(flags))


def _rate(rate: Rate) -> str:
    return f"{rate.per_100k:.1f} (< {rate.limit_per_100k:.1f})"
