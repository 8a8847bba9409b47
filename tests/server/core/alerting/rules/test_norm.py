"""The rules about norms, and how they share the layers with the one about NaN and Inf."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.flags import find_flags
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.exploding import ExplodingRule
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.nonfinite import NonfiniteRule
from gradwatch_server.core.alerting.rules.vanishing import VanishingRule
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from tests.support.core import Cluster, frame_of, judged, part_of

NAN = math.nan
ABOVE = float(np.nextafter(100.0, math.inf))
BELOW = float(np.nextafter(1e-7, 0.0))


def raised_by(rule: LayerRule, frame: Frame, context: Context) -> BoolArray:
    """Return (layers,) what a rule raises, also where that is nothing."""
    raised = rule.raised(frame, context)
    return np.zeros(len(frame.present), dtype=np.bool_) if raised is None else raised


def test_absent_layers_are_nothing() -> None:
    """A layer without a record does not vanish."""
    frame = frame_of(part_of([1.0], index=[2]))

    flags = find_flags(frame, Rules(), judged(frame))

    assert not any(mask.any() for mask in flags.masks.values())


@pytest.mark.parametrize(
    ("l2", "what"),
    [
        (1.0, set()),
        (100.0, set()),
        (ABOVE, {"exploding"}),
        (1e308, {"exploding"}),
        (1e-7, set()),
        (BELOW, {"vanishing"}),
        (5e-324, {"vanishing"}),
        (0.0, {"vanishing"}),
        (math.nan, {"nonfinite"}),
        (math.inf, {"nonfinite"}),
    ],
)
def test_a_layer_is_marked_beyond_the_default_thresholds(l2: float, what: set[str]) -> None:
    """100 and 1e-7 themselves are fine; a layer is never two things at once."""
    frame = frame_of(part_of([l2]))
    flags = find_flags(frame, Rules(), judged(frame))

    assert {name for name, mask in flags.masks.items() if mask[0]} == what


def test_thresholds_can_be_set() -> None:
    rules = Rules.model_validate(
        {"exploding": {"limit": 2}, "vanishing": {"limit": 0.5, "clear": 0.6}}
    )
    frame = frame_of(part_of([2.0, 2.5, 0.5, 0.4]))
    flags = find_flags(frame, rules, judged(frame))

    assert flags.masks["exploding"].tolist() == [False, True, False, False]
    assert flags.masks["vanishing"].tolist() == [False, False, False, True]


def test_any_rank_is_enough() -> None:
    """The largest norm over ranks explodes, the smallest vanishes."""
    frame = frame_of(part_of([1.0, 1.0]), part_of([200.0, 0.0], rank=1))
    flags = find_flags(frame, Rules(), judged(frame))

    assert flags.masks["exploding"].tolist() == [True, False]
    assert flags.masks["vanishing"].tolist() == [False, True]


def test_a_layer_that_explodes_on_one_rank_and_vanishes_on_another_explodes() -> None:
    frame = frame_of(part_of([0.0]), part_of([200.0], rank=1))
    flags = find_flags(frame, Rules(), judged(frame))

    assert (flags.masks["exploding"][0], flags.masks["vanishing"][0]) == (True, False)


@pytest.mark.slow
@given(l2=st.lists(st.floats(0.0), min_size=1, max_size=6))
def test_what_is_raised_is_held_and_what_is_held_is_seen(l2: list[float]) -> None:
    """The three masks contain one another, whatever the numbers."""
    frame = frame_of(part_of(l2))
    for rule in (NonfiniteRule(), ExplodingRule(), VanishingRule()):
        context = judged(frame, *"abcdef"[: len(l2)])
        raised = raised_by(rule, frame, context)
        for evaluation in rule.evaluate(frame, raised, context):
            verdict = evaluation.verdict

            assert not (verdict.raised & ~verdict.held).any()
            assert not (verdict.held & ~verdict.seen).any()


def test_rules_of_norms_cannot_see_nonfinite_layers() -> None:
    """An Inf is no large norm and a NaN is no small one: another rule has them."""
    frame = frame_of(part_of([math.nan, math.inf, 1.0, 1.0], nans=[0, 0, 1, 0]))

    assert ExplodingRule().seen(frame).tolist() == [False] * 3 + [True]
    assert VanishingRule().seen(frame).tolist() == [False] * 3 + [True]
    assert NonfiniteRule().seen(frame).tolist() == [True] * 4


def test_the_worst_layer_breaks_the_rule_most() -> None:
    """The largest of those flagged explodes most, the smallest vanishes most."""
    frame = frame_of(part_of([200.0, 900.0, 1e9, 0.0, 1e-9, 1e-12]))
    exploding = np.array([True, True, False, False, False, False])
    vanishing = np.array([False, False, False, False, True, True])

    assert ExplodingRule.worst_first(frame, exploding).tolist() == [1, 0]
    assert VanishingRule.worst_first(frame, vanishing).tolist() == [5, 4]


def test_of_equally_bad_layers_the_first_comes_first() -> None:
    frame = frame_of(part_of([500.0, 0.0] * 40))

    for rule, layers in ((ExplodingRule, range(0, 80, 2)), (VanishingRule, range(1, 80, 2))):
        flagged = np.isin(np.arange(80), list(layers))
        assert rule.worst_first(frame, flagged).tolist() == list(layers)


EXPLODING_TABLE = [
    ("one breaks the limit", [500.0, 1.0, 1.0], 3, (0,)),
    ("several do", [500.0, 1.0, 101.0], 3, (0, 2)),
    ("none does, one stands out", [1.0, 90.0, 2.0], 3, (1,)),
    ("none does, and who is missing might", [1.0, 90.0, 2.0], 4, (0, 1, 2)),
    ("none does, none stands out", [80.0, 90.0, 85.0], 3, (0, 1, 2)),
    ("not finite is not large", [NAN, 90.0, 85.0], 3, (0, 1, 2)),
]


@pytest.mark.parametrize(
    ("local", "world", "ranks"),
    [row[1:] for row in EXPLODING_TABLE],
    ids=[row[0] for row in EXPLODING_TABLE],
)
def test_an_explosion_is_of_the_rank_whose_own_gradient_is_large(
    local: list[float], world: int, ranks: tuple[int, ...]
) -> None:
    """Otherwise of all ranks that show it."""
    parts = [part_of([200.0], rank=r, local_l2=[norm]) for r, norm in enumerate(local)]
    frame = frame_of(*parts, world=world)
    origin = ExplodingRule().origin(frame, judged(frame, "a"), frame.present)

    assert origin.ranks == ranks


def test_one_rank_without_its_own_gradient_may_be_the_one() -> None:
    local = [{"local_l2": [norm]} for norm in (1.0, 90.0, 2.0)]
    parts = [part_of([200.0], rank=r, **own) for r, own in enumerate([*local, {}])]
    frame = frame_of(*parts)

    assert ExplodingRule().origin(frame, judged(frame, "a"), frame.present).rank is None


@pytest.mark.parametrize("unknown", [[90.0, -1.0, -1.0], [90.0, 1.0, -1.0], [-1.0, -1.0, -1.0]])
def test_a_rank_whose_own_gradient_is_not_known_is_no_small_one(unknown: list[float]) -> None:
    """C11: a negative number stands for one that was not measured; nobody stands out from it."""
    parts = [part_of([200.0], rank=r, local_l2=[norm]) for r, norm in enumerate(unknown)]
    frame = frame_of(*parts)

    assert ExplodingRule().origin(frame, judged(frame, "a"), frame.present).rank is None


@pytest.mark.parametrize(("rule", "norm"), [(ExplodingRule(), 500.0), (VanishingRule(), 1e-9)])
def test_a_large_or_small_piece_is_nobodys(rule: LayerRule, norm: float) -> None:
    def ranks(reduction: str) -> Any:
        parts = [
            part_of([own], rank=r, shards=[f"{r}/2"], labels={"reduction": reduction})
            for r, own in enumerate((norm, 0.0))
        ]
        frame = frame_of(*parts)
        return rule.origin(frame, judged(frame, "a"), frame.present).ranks

    assert ranks("mean") == ()
    assert 0 in ranks("none")


def test_an_explosion_between_reports_is_of_the_ranks_that_had_it() -> None:
    frame = frame_of(part_of([1.0], l2_max=[300.0], rank=4), part_of([1.0], rank=5))
    origin = ExplodingRule().origin(frame, judged(frame, "a"), frame.present)

    assert (origin.ranks, origin.value) == ((4,), 300.0)


@pytest.mark.parametrize(
    ("rule", "norms", "layer", "value", "ranks"),
    [
        (ExplodingRule(), [[150.0, 200.0], [150.0, 90.0]], "b", 200.0, (0,)),
        (ExplodingRule(), [[300.0, 90.0], [150.0, 90.0]], "a", 300.0, (0, 1)),
        (VanishingRule(), [[1.0, 1e-9], [1.0, 1.0]], "b", 1e-9, (0,)),
        (VanishingRule(), [[0.0, 1e-9], [1e-8, 1.0]], "a", 0.0, (0, 1)),
    ],
)
def test_a_norm_out_of_range_is_of_the_ranks_that_have_it(
    rule: ExplodingRule | VanishingRule,
    norms: list[list[float]],
    layer: str | None,
    value: float,
    ranks: tuple[int, ...],
) -> None:
    """The worst layer is named, with its worst value and each rank beyond the limit there.

    Of several that are above without a past nobody knows which exploded first.
    """
    frame = frame_of(*(part_of(norm, rank=rank) for rank, norm in enumerate(norms)))
    context = judged(frame, "a", "b")
    origin = rule.origin(frame, context, raised_by(rule, frame, context))

    assert (origin.layer, origin.value, origin.ranks) == (layer, value, ranks)
    assert origin.rank == (ranks[0] if len(ranks) == 1 else None)
    assert origin.threshold == rule.limit


def test_only_the_layers_that_were_raised_are_looked_at() -> None:
    """A worse layer of another group is not the origin of this one."""
    frame = frame_of(part_of([150.0, 900.0]))
    origin = ExplodingRule().origin(frame, judged(frame, "a", "b"), np.array([True, False]))

    assert (origin.layer, origin.value) == ("a", 150.0)


@pytest.mark.parametrize(
    ("norms", "events"),
    [
        ([1, 100, 1], []),
        ([101], [("firing", 0)]),
        ([101, *[1] * 16], [("firing", 0), ("resolved", 16)]),
        # A second time is a second alert.
        ([101, *[1] * 16, 101], [("firing", 0), ("resolved", 16), ("firing", 17)]),
    ],
)
def test_a_norm_above_the_limit_is_told_while_there_is_no_history(
    norms: list[float], events: list[tuple[str, int]]
) -> None:
    job = Cluster(names=("a",)).start()
    job.rules(nonfinite={"enabled": False})
    for step, norm in enumerate(norms):
        job.step(step, [norm])

    told = [a for a in job.alerts if a.rule == "exploding"]
    assert [(a.state, a.resolved_step or a.fired_step) for a in told] == events


@pytest.mark.parametrize(
    ("factor", "loss", "severity"),
    [(1.0, 2.0, "info"), (30.0, 2.0, "warning"), (1.0, 8.0, "warning")],
)
def test_without_a_history_a_large_norm_matters_where_total_or_loss_grow(
    factor: float, loss: float, severity: str
) -> None:
    job = Cluster(names=("a.w", "b.w")).start()
    for step in range(4):
        job.step(step, [90.0, 90.0], loss=2.0)
    (alert,) = job.step(4, [101.0 * factor, 90.0], loss=loss)

    assert (alert.rule, alert.severity, alert.origin.layer) == ("exploding", severity, "a.w")


@pytest.mark.parametrize(
    ("norms", "events"),
    [
        ([0, 0], []),
        ([0, 0, 0], [("firing", 2)]),
        ([1e-9, 1e-9, 1, 1e-9, 1e-9], [("firing", 3)]),
        ([0, 0, 1, 1, 0, 0], []),
        ([0, 0, 0, 1.5e-7, 1, 1, 1], [("firing", 2), ("resolved", 6)]),
        ([0, 0, NAN, 0], [("firing", 3)]),
    ],
)
def test_vanishing_fires_and_is_over(norms: list[float], events: list[tuple[str, int]]) -> None:
    """Pending for 3 steps; from 2e-7 on it is calm."""
    job = Cluster(names=("a",)).start()
    job.rules(nonfinite={"enabled": False})
    for step, norm in enumerate(norms):
        job.step(step, [norm])

    assert [(a.state, a.resolved_step or a.fired_step) for a in job.alerts] == events


def test_an_explosion_between_reports_fires() -> None:
    job = Cluster(names=("a",)).start()
    job.step(10, [1.0], l2_max=[500.0])

    assert [(a.rule, a.state, a.fired_step) for a in job.alerts] == [("exploding", "firing", 10)]
    assert job.health()["worst_layers"] == [{"name": "a", "why": "exploding", "l2": 500.0}]
