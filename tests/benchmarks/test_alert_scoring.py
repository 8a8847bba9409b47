"""Scores of findings: labels and alerts made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.alerts import part, tables
from benchmarks.alerts.evaluate import SECTION, render
from benchmarks.alerts.evaluation import (
    GRADWATCH,
    RULE_SETS,
    Results,
    doubled_step,
    evaluate,
    evaluate_run,
    is_true,
)
from benchmarks.alerts.finding import Finding, incidents
from benchmarks.alerts.judge import Judge, judge
from benchmarks.alerts.recorded import FaultLabel, Recorded, Split
from benchmarks.alerts.replay import entries
from benchmarks.alerts.scoring import (
    Healthy,
    Judged,
    Rate,
    Share,
    alerts_per_incident,
    false_alarms,
    judged,
    poisson_limit,
)
from benchmarks.alerts.store import Collection
from gradwatch_wire.health import Severity

FIRST, LAST = 200, 300

FOUND = 0.8
MAX_MISSED = 1  # harmful ones: labels that are shuffled
MAX_WRONG = 1
MAX_FALSE = 3
"""Floor of the part that is committed: share of faults found, wrong origins, false alarms."""


def fault(**changes: Any) -> FaultLabel:
    """Return the label of a sudden fault in one layer."""
    plain: dict[str, Any] = {
        "name": "module_scaled",
        "kind": "spike",
        "first_step": FIRST,
        "last_step": LAST - 1,
        "module": "body.0",
        "layers": ("body.0.weight",),
        "ranks": (),
        "factor": 30.0,
        "rules": ("spike", "loss"),
        "is_harmful": True,
        "is_gradual": False,
    }
    return FaultLabel(**plain | changes)


def finding(step: int, rule: str = "spike", **changes: Any) -> Finding:
    return Finding(step=step, rule=rule, **changes)


def fork(*findings: Finding, label: FaultLabel | None = None, world: int = 1) -> Judged:
    return judged("mlp-0+x", Split.TUNE, world, label or fault(), findings, (), LAST)


def healthy(*findings: Finding, steps: int = 1000) -> Healthy:
    return Healthy(
        run="mlp-0", family="mlp", split=Split.TUNE, steps=steps, findings=tuple(findings)
    )


def test_alerts_closer_than_32_steps_are_one_incident() -> None:
    found = incidents([finding(step) for step in (131, 100, 162, 194)])
    assert [[each.step for each in some] for some in found] == [[100, 131, 162], [194]]


def test_what_was_said_before_a_fault_shows_is_not_about_it() -> None:
    own = fork(finding(FIRST - 1))
    assert (own.found, own.named, own.delay, own.findings) == (False, False, None, ())


@pytest.mark.parametrize(
    ("said", "found", "named", "told"),
    [
        (finding(FIRST), True, True, True),
        (finding(FIRST, "vanishing"), True, False, False),
        (finding(FIRST, severity=Severity.INFO), False, False, True),
        (finding(FIRST, "vanishing", severity=Severity.INFO), False, False, False),
        (finding(FIRST, severity=Severity.CRITICAL), True, True, True),
    ],
)
def test_a_fault_is_found_by_any_warning_and_named_by_a_right_one(
    said: Finding, *, found: bool, named: bool, told: bool
) -> None:
    own = fork(said)
    assert (own.found, own.named, own.told) == (found, named, told)


def test_the_delay_is_that_of_the_first_warning() -> None:
    info = finding(FIRST, severity=Severity.INFO)
    assert fork(finding(FIRST + 9), finding(FIRST + 4, "vanishing"), info).delay == 4


@pytest.mark.parametrize(
    ("origin", "right"), [(FIRST, True), (FIRST - 2, True), (FIRST + 3, False), (None, False)]
)
def test_the_origin_of_a_sudden_fault_is_right_within_two_steps(
    origin: int | None, *, right: bool
) -> None:
    assert fork(finding(FIRST + 5, origin_step=origin)).step_right is right


def test_the_origin_of_a_slow_fault_is_right_while_it_was_small() -> None:
    slow = fault(is_gradual=True, factor=0.95)
    doubled = math.log(2) / -math.log(0.95)
    assert 13 < doubled < 14
    assert fork(finding(FIRST + 20, origin_step=FIRST + 13), label=slow).step_right
    assert not fork(finding(FIRST + 20, origin_step=FIRST + 14), label=slow).step_right
    assert fork(finding(FIRST + 80, origin_step=FIRST + 20), label=slow).step_right
    assert not fork(finding(FIRST + 80, origin_step=FIRST + 21), label=slow).step_right


def test_module_and_layer_are_those_of_the_first_warning_that_names_one() -> None:
    """A loss names none; a later alert is too late."""
    loss = finding(FIRST, "loss")
    own = fork(loss, finding(FIRST, layer="body.0.bias"))
    assert (own.module_right, own.layer_right, own.is_misled) == (True, False, False)
    own = fork(loss, finding(FIRST, layer="head.weight"))
    assert (own.module_right, own.layer_right, own.is_misled) == (False, False, True)
    own = fork(loss, finding(FIRST + 1, layer="body.0.weight"))
    assert (own.module_right, own.layer_right, own.is_misled) == (False, False, False)


def test_what_began_everywhere_has_no_layer_to_be_right_about() -> None:
    everywhere = fault(module=None, layers=())
    own = fork(finding(FIRST, layer="body.0.weight"), label=everywhere)
    assert (own.module_right, own.layer_right) == (None, None)
    assert (fork().module_right, fork().layer_right, fork().step_right) == (None, None, None)


def test_a_rank_is_right_or_blamed() -> None:
    local = fault(ranks=(2,))
    assert fork(finding(FIRST, rank=2), label=local, world=4).rank_right is True
    assert fork(finding(FIRST, rank=1), label=local, world=4).rank_right is False
    assert fork(finding(FIRST), label=local, world=4).rank_right is False
    assert fork(finding(FIRST, rank=0), label=local).rank_right is None
    assert fork(finding(FIRST, rank=0), world=4).rank_right is None
    assert fork(finding(FIRST, rank=0), world=4).blames_rank is True
    assert fork(finding(FIRST), world=4).blames_rank is False


def test_a_warning_in_the_same_healthy_steps_is_chance() -> None:
    def by_chance(*said: Finding) -> bool:
        return judged("x", Split.TUNE, 1, fault(), (), said, LAST).by_chance

    assert by_chance(finding(FIRST))
    assert not by_chance(finding(FIRST - 1), finding(LAST))
    assert not by_chance(finding(FIRST, severity=Severity.INFO))


@pytest.mark.parametrize(("count", "limit"), [(0, 2.996), (1, 4.744), (2, 6.296), (10, 16.962)])
def test_the_limit_of_a_rate_is_that_of_poisson(count: int, limit: float) -> None:
    assert poisson_limit(count) == pytest.approx(limit, abs=1e-3)
    assert Rate(count=count, steps=200_000).limit_per_100k == pytest.approx(limit / 2, abs=1e-3)


def test_false_alarms_are_incidents_and_info_is_apart() -> None:
    info = finding(500, "drift", severity=Severity.INFO)
    runs = [healthy(finding(10), finding(20, "loss"), info), healthy(steps=3000)]
    assert false_alarms(runs) == Rate(count=1, steps=4000)
    assert false_alarms(runs, info=True) == Rate(count=1, steps=4000)
    assert Rate(count=1, steps=4000).per_100k == 25.0


def test_all_warnings_about_a_fault_are_one_incident() -> None:
    runs = [healthy(finding(10), finding(20), finding(100))]
    faults = [fork(finding(FIRST), finding(FIRST + 90), finding(FIRST + 91)), fork()]
    assert alerts_per_incident(runs, faults) == (2 + 1 + 3) / 3
    assert math.isnan(alerts_per_incident([healthy()], [fork()]))


# The tables


def results(*forks: Judged, runs: tuple[Healthy, ...] = ()) -> Results:
    return Results(list(runs), list(forks))


def test_the_table_counts_what_a_rule_is_about() -> None:
    """Faults that no rule names are in the table by kind only."""
    none = fork(label=fault(kind="other", rules=()))
    harmless = fork(label=fault(is_harmful=False))
    own = results(fork(finding(FIRST + 3)), harmless, none, runs=(healthy(finding(5)),))
    row = tables.found(dict.fromkeys(RULE_SETS, own))[0]
    assert row[:7] == (GRADWATCH, "100 %", "50 %", "50 %", "0 %", "3 / 3", "100.0 (< 474.4)")
    said = {row[0]: row[1] for row in tables.across({Split.TUNE: own})}
    assert said["found, harmful"] == "100 % (21 to 100)"
    assert said["alerts per incident"] == "1.00"
    assert said["false info"] == "0.0 (< 299.6)"
    other, spike = tables.by_kind({GRADWATCH: own, "ZClip": results(fork(finding(FIRST)))})
    assert other == ("other", "1", "1", "0", "-", "-", "-", "0")
    assert spike == ("spike", "2", "1", "1", "1", "1", "3 / 3", "1")


def test_the_page_takes_the_tables_between_its_marks() -> None:
    left_out = replace(fork(finding(FIRST)), split=Split.FAMILIES)
    runs = (replace(healthy(), split=Split.FAMILIES),)
    own = {name: results(left_out, runs=runs) for name in RULE_SETS}
    page = SECTION.read()
    once = SECTION.filled(page, render(own))
    assert SECTION.filled(once, render(own)) == once
    head, _, tail = page.partition(SECTION.begin)
    assert once.startswith(head)
    assert once.endswith(tail.partition(SECTION.end)[2])
    assert "| ZClip | 100 % |" in once
    with pytest.raises(ValueError, match="needs a line"):
        SECTION.filled(head, "x")


# Over recorded runs


@pytest.mark.slow
def test_the_part_that_is_committed_is_judged_as_well_as_ever() -> None:
    """One run of each of twenty families, with a fault each: of these nearly all are found."""
    whole = Results()
    for name in Collection(part.DIRECTORY).names:
        if "+" not in name:
            own = evaluate_run(part.DIRECTORY, name)[1][GRADWATCH]
            whole.healthy += own.healthy
            whole.faults += own.faults
    ours = [each for each in whole.faults if each.fault.rules]
    found = Share.of(each.found for each in ours)
    assert found.count >= FOUND * found.cases
    assert sum(each.fault.is_harmful and not each.found for each in ours) <= MAX_MISSED
    assert sum(each.origin_wrong is True for each in ours) <= MAX_WRONG
    assert false_alarms(whole.healthy).count <= MAX_FALSE


def _forks(runs: Collection, parent: str) -> list[Recorded]:
    return [runs.read(name) for name in runs.names if name.startswith(f"{parent}+")]


@pytest.mark.parametrize("parent", ["regression-0", "regression-1", "regression-2"])
def test_a_fork_is_judged_as_if_all_of_it_was_replayed(runs: Collection, parent: str) -> None:
    """The state before it is copied; the copy goes on as the whole would, and alone."""
    forks = _forks(runs, parent)
    healthy_findings, found = judge(runs.read(parent), forks)
    alone = Judge()
    alone.add(entries(runs.read(parent)))
    assert healthy_findings == alone.findings
    assert set(found) == {each.name for each in forks}
    for each in forks:
        whole = Judge()
        whole.add(entries(each))
        assert found[each.name] == [one for one in whole.findings if one.step >= each.forked_at]
    assert any(found.values())


def test_the_set_is_judged_by_all(runs: Collection) -> None:
    """NaN is found by who looks for it, at the step at which it came."""
    whole = dict(evaluate(runs.directory, only="regression", processes=1))
    assert list(whole) == [f"regression-{seed}" for seed in range(4)]
    assert all(set(own) == set(RULE_SETS) for own in whole.values())
    delays = {
        name: {each.fault.name: each.delay for each in own.faults}
        for name, own in whole["regression-0"].items()
        if not name.isdecimal()
    }
    assert {name: delay["nan_gradient"] for name, delay in delays.items()} == {
        GRADWATCH: 0,
        "SageMaker": 0,
        "OLMo-core": None,
        "ZClip": None,
        "Megatron": 0,
        "Lightning": 1,
    }
    assert delays[GRADWATCH]["module_scaled"] == 0
    assert whole["regression-0"][GRADWATCH].healthy[0].steps == 420


def test_a_replica_that_differs_is_found_by_its_digests(runs: Collection) -> None:
    name = "regression-1+replica_corrupted"
    fork = runs.read(name)
    _, found = judge(runs.read("regression-1"), [fork])
    (told,) = [each for each in found[name] if each.rule == "rank_divergence"]
    assert told.step == fork.rows.weights_at[fork.rows.weights_at >= fork.forked_at][0] + 1
    assert fork.fault is not None
    assert told.rank in fork.fault.ranks


def test_who_was_killed_is_lost(runs: Collection) -> None:
    """The training that is resumed was; anywhere else it is a false alarm."""
    resumed = runs.read("regression-3")
    last = int((resumed.rows.attempt == 0).sum()) - 1
    assert is_true(finding(last, "liveness", origin_step=last), resumed)
    assert not is_true(finding(last, "liveness", origin_step=last - 1), resumed)
    assert not is_true(finding(last, "spike", origin_step=last), resumed)
    found, _ = judge(resumed, [])
    assert [each.rule for each in found if is_true(each, resumed)] == ["liveness"] * 2
    assert is_true(finding(last - 3, "liveness", origin_step=last - 3), resumed, every=4)


def test_a_rank_that_no_number_tells_is_not_to_be_named() -> None:
    """An element that is wrong on one of two ranks; of three the majority tells."""
    label = fault(name="bit_error", kind="rank_divergence", ranks=(1,))
    silent, named = finding(FIRST), finding(FIRST, rank=1)

    assert fork(silent, label=label, world=2).rank_right is True
    assert fork(named, label=label, world=2).rank_right is False
    assert fork(silent, label=label, world=3).rank_right is False
    assert fork(named, label=label, world=3).rank_right is True
    other = fault(name="unreduced", kind="rank_divergence", ranks=(1,))
    assert fork(silent, label=other, world=2).rank_right is False


def test_of_what_is_only_looked_at_now_and_then_the_step_is_between_two() -> None:
    told: dict[str, Any] = {"origin_step": FIRST + 40}
    right = finding(FIRST + 40, last_good_step=FIRST - 60, **told)

    assert fork(right).step_right is True
    assert fork(finding(FIRST + 40, last_good_step=FIRST, **told)).step_right is False
    assert fork(finding(FIRST + 40, **told)).step_right is False


def test_a_gradual_fault_began_until_norms_had_doubled() -> None:
    """A learning rate that grows does nothing to norms at first; after that it is late."""
    label = fault(is_gradual=True, factor=1.04, module=None, layers=())
    for late, right in ((0, True), (55, True), (60, True), (61, False), (-40, False)):
        one = finding(FIRST + 80, origin_step=FIRST + late)
        own = judged("x", Split.TUNE, 1, label, [one], (), LAST, FIRST + 60)
        assert own.step_right is right, late


def test_norms_double_where_they_stay_twice_those_of_the_healthy_run(runs: Collection) -> None:
    """Thirty times from its first step on; and the healthy run itself never does."""
    healthy_run, many = runs.read("regression-0"), runs.read("regression-0+module_scaled")
    assert doubled_step(healthy_run, many) == many.forked_at
    assert doubled_step(healthy_run, healthy_run) is None


def test_what_names_a_wrong_module_or_rank_is_counted() -> None:
    """Null is not right, but nobody is misled by it."""
    silent, wrong = finding(FIRST), finding(FIRST, layer="head.weight", rank=1)
    assert (fork(silent).module_right, fork(silent).is_misled) == (False, False)
    assert fork(wrong).is_misled
    assert fork(wrong, world=2).blames_rank is True
    assert (fork(silent, world=2).origin_wrong, fork(wrong, world=2).origin_wrong) == (False, True)
    right = finding(FIRST, origin_step=FIRST, layer="body.0.weight")
    assert (fork(right).origin_right, fork(silent).origin_right) == (True, False)
    assert fork().origin_right is fork().origin_wrong is None
