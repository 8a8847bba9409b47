"""The tables: parts of the set side by side, each set of rules, each kind of fault, each family."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from benchmarks.alerts.evaluation import GRADWATCH, SPACINGS, Results
from benchmarks.alerts.peers import PEERS
from benchmarks.alerts.recorded import Split
from benchmarks.alerts.scoring import Judged, Rate, Share, alerts_per_incident, false_alarms
from benchmarks.report import quantile

Row: TypeAlias = Sequence[str]

NOTHING: Final = "-"

SPLITS: Final = {
    Split.TUNE: "tuning part",
    Split.SEEDS: "other seeds",
    Split.FAMILIES: "left-out families",
}
"""Names of the parts of the set, for people."""

_SHARES: Final[tuple[tuple[str, Callable[[Judged], bool | None]], ...]] = (
    ("found, harmful", lambda each: each.found if each.fault.is_harmful else None),
    ("found, all", lambda each: each.found),
    ("named", lambda each: each.named),
    ("named, or info", lambda each: each.told),
    ("step right", lambda each: each.step_right),
    ("module right", lambda each: each.module_right),
    ("layer right", lambda each: each.layer_right),
    ("rank right", lambda each: each.rank_right),
    ("origin right", lambda each: each.origin_right),
    ("origin wrong", lambda each: each.origin_wrong),
    ("cause right", lambda each: each.cause_right),
    ("cause stated", lambda each: each.has_cause),
)
ACROSS_NOTES: Final = (
    "shares are of the faults that a rule is about, with their 95 % interval",
    "harmful: the loss became worse than chance; found: there was a warning",
    "named: a warning of a rule that is right about the fault",
    "step: right within 2; if gradual, within a quarter of the delay or while the norm doubled",
    "of weights, compared every 100 steps, a step is right between the two comparisons",
    "origin right: step, module and rank, each where there is one; wrong: another is named",
    "cause right: of all causes stated; stated: of the faults found whose cause is in the numbers",
    "steps: until the first warning, median / nine tenths; of sudden faults alone",
    "false alarms: incidents with a warning per 100,000 healthy steps (95 %: it is less)",
)
THINNED_COLUMNS: Final = ("every", "runs", "steps", "harmful", "all", "in time", "false alarms")
THINNED_NOTES: Final = (
    "every: steps between two that the client looks at; runs and faults with 16 frames before",
    "in time: of the sudden faults found, told within twice the spacing",
)
FOUND_COLUMNS: Final = (
    "rules",
    "harmful",
    "all",
    "named",
    "by chance",
    "steps",
    "false alarms",
    "step",
    "module",
    "rank",
)
FOUND_NOTES: Final = (
    "by chance: share of the same steps of the healthy runs in which there was a warning, too",
)


def about(results: Results) -> str:
    steps = sum(run.steps for run in results.healthy)
    harmful = sum(each.fault.is_harmful for each in results.faults)
    kinds = len({each.fault.kind for each in results.faults})
    families = len({run.family for run in results.healthy})
    return (
        f"{len(results.healthy)} runs of {families} families, {steps:,} healthy steps; "
        f"{len(results.faults)} faults of {kinds} kinds, {harmful} of them harmful"
    )


def across(results: Mapping[Split, Results]) -> list[Row]:
    """Return a row for each measure of gradwatch, with a column for each part of the set."""
    ours = {split: _ours(result) for split, result in results.items()}
    rows: list[Row] = [
        (name, *(_share(map(measure, own), interval=True) for own in ours.values()))
        for name, measure in _SHARES
    ]
    sudden = {s: [each for each in own if not each.fault.is_gradual] for s, own in ours.items()}
    healthy = {split: result.healthy for split, result in results.items()}
    rows += [
        ("steps", *map(delays, sudden.values())),
        ("alerts per incident", *(_per_incident(result) for result in results.values())),
        ("false alarms", *(_rate(false_alarms(own)) for own in healthy.values())),
        ("false info", *(_rate(false_alarms(own, info=True)) for own in healthy.values())),
        ("healthy steps", *(f"{sum(run.steps for run in own):,}" for own in healthy.values())),
        ("faults", *(str(len(own)) for own in ours.values())),
    ]
    return rows


def thinned(results: Mapping[str, Results]) -> list[Row]:
    """Return a row for each spacing at which gradwatch looked, all parts of the set together."""
    rows: list[Row] = []
    for every in SPACINGS:
        own = results[str(every)]
        ours = [each for each in _ours(own) if _lasts(each, every)]
        sudden = [each for each in ours if not each.fault.is_gradual]
        late = [each.delay <= 2 * every for each in sudden if each.delay is not None]
        rows.append(
            (
                str(every),
                str(len(own.healthy)),
                f"{sum(run.steps for run in own.healthy):,}",
                _share((each.found for each in ours if each.fault.is_harmful), interval=True),
                _share((each.found for each in ours), interval=True),
                _share(late),
                _rate(false_alarms(own.healthy)),
            )
        )
    return rows


def found(results: Mapping[str, Results]) -> list[Row]:
    """Return a row for each set of rules."""
    rows: list[Row] = []
    for name in (GRADWATCH, *PEERS):
        own, ours = results[name], _ours(results[name])
        rows.append(
            (
                name,
                _share(each.found for each in ours if each.fault.is_harmful),
                _share(each.found for each in ours),
                _share(each.named for each in ours),
                _share(each.by_chance for each in ours),
                delays(ours),
                _rate(false_alarms(own.healthy)),
                _share(each.step_right for each in ours),
                _share(each.module_right for each in ours),
                _share(each.rank_right for each in ours),
            )
        )
    return rows


def by_family(results: Results) -> list[Row]:
    """Return a row for each family: what was found of its faults, and false alarms."""
    rows: list[Row] = []
    for family in sorted({run.family for run in results.healthy}):
        healthy = [run for run in results.healthy if run.family == family]
        ours = [each for each in _ours(results) if each.run.rpartition("-")[0] == family]
        harmful = Share.of(each.found for each in ours if each.fault.is_harmful)
        whole = Share.of(each.found for each in ours)
        alarms = false_alarms(healthy)
        rows.append(
            (
                family,
                f"{harmful.count} of {harmful.cases}",
                f"{whole.count} of {whole.cases}",
                f"{alarms.count} in {alarms.steps:,}",
            )
        )
    return rows


FAMILY_COLUMNS: Final = ("family", "harmful", "all", "false alarms")


def kind_columns(rule_sets: Iterable[str]) -> tuple[str, ...]:
    """Return the heads of `by_kind`."""
    others = (name for name in rule_sets if name in PEERS)
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
                    if name in PEERS
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


def _ours(results: Results) -> list[Judged]:
    return [each for each in results.faults if each.fault.rules]


def _lasts(fault: Judged, every: int) -> bool:
    return fault.fault.last_step - fault.fault.first_step >= every


def _per_incident(results: Results) -> str:
    alerts = alerts_per_incident(results.healthy, results.faults)
    return NOTHING if math.isnan(alerts) else f"{alerts:.2f}"


def _share(flags: Iterable[bool | None], *, interval: bool = False) -> str:
    share = Share.of(flags)
    if not share.cases:
        return NOTHING
    shown = f"{100 * share.count / share.cases:.0f} %"
    low, high = share.interval
    return f"{shown} ({100 * low:.0f} to {100 * high:.0f})" if interval else shown


def _count(flags: Iterable[bool]) -> str:
    return str(sum(flags))


def _rate(rate: Rate) -> str:
    return f"{rate.per_100k:.1f} (< {rate.limit_per_100k:.1f})"
