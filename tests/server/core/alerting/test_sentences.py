"""Sentences of alerts: what people read at three in the morning, on a phone."""

from __future__ import annotations

import math

import pytest

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules.registry import REGISTRY
from gradwatch_server.core.alerting.sentences import ALL_STOPPED, HEADLINES, headline, message
from tests.support.core import alert

TABLE: tuple[tuple[Alert, str], ...] = (
    (
        alert("liveness", kind="lost", ranks=(1,)),
        "Rank 1 lost after step 79: no heartbeat, no clean exit",
    ),
    (
        alert(
            "liveness",
            kind="stalled",
            ranks=(0, 1),
            value=301.0,
            threshold=300.0,
            detail=ALL_STOPPED,
        ),
        "Hang: no step for 301 s (limit 300 s); all ranks stopped after step 79",
    ),
    (
        alert("exploding", step=151, layers=33, farthest="X", value=120.0, usual=0.069),
        "Exploding since step 151 on rank 0: 33 layers, worst X at 120 (usual 0.069)",
    ),
    (alert("liveness", kind="failed"), "Rank 0 failed after step 79: exception in training"),
    (
        alert(
            "liveness",
            kind="silent",
            ranks=(5,),
            step=69,
            value=3.0,
            threshold=10.0,
            detail="others: 119",
        ),
        "Rank 5 stuck at step 69 (others: 119)",
    ),
    (
        alert("liveness", kind="silent", ranks=(0, 3, 7), value=45.2, threshold=10.0),
        "Ranks 0, 3 and 7 silent for 45 s (10 s allowed) after step 79",
    ),
    (
        alert("liveness", kind="lost", ranks=(0, 3, 7, 9)),
        "Ranks 0, 3 and 2 more lost after step 79: no heartbeat, no clean exit",
    ),
    (
        alert(
            "liveness",
            kind="stalled",
            ranks=(3,),
            value=12.0,
            threshold=11.8,
            detail="others at step 80",
        ),
        "Hang: no step for 12.0 s (limit 11.8 s); rank 3 stopped after step 79, others at step 80",
    ),
    (
        alert("liveness", kind="stalled", value=31.0, threshold=30.0),
        "Hang: no step for 31 s (limit 30 s) after step 79",
    ),
    (
        alert("nonfinite", ranks=(1,), layers=3, layer="c", kind="nan", bad_loss=False),
        "NaN gradient since step 79 on rank 1: 3 layers, first c",
    ),
    (
        alert("nonfinite", ranks=(1,), layers=3, kind="inf", bad_loss=True, first_gradient="c"),
        "Loss or forward pass not finite since step 79 on rank 1, then 3 layers, first c",
    ),
    (
        alert("nonfinite", ranks=(), layers=1, kind="nan", first_gradient="c"),
        "NaN gradient since step 79 on a rank not known, maybe the loss before: c",
    ),
    (
        alert("nonfinite", layers=4, kind="nan", module="h.0", magnitude=math.inf),
        "Inf in the forward pass since step 79 on rank 0: first from h.0",
    ),
    (
        alert("nonfinite", ranks=tuple(range(8)), layers=4, kind="nan"),
        "NaN gradient since step 79 on 8 ranks: 4 layers (a, b, c, …)",
    ),
    (
        alert("nonfinite", step=1_000_070, last_good_step=1_000_031, layers=4, bad_loss=True),
        (
            "Loss or forward pass not finite between steps 1000031 and 1000070 on rank 0, "
            "then 4 layers (a, …)"
        ),
    ),
    (
        alert("exploding", layers=1, layer="a", value=120.0, threshold=100.0),
        "Exploding since step 79 on rank 0: a at 120 (limit 100)",
    ),
    (
        alert("vanishing", ranks=(0, 1), layers=2, layer="a", value=1e-9),
        "Vanishing since step 79: 2 layers, worst a at 1e-09 (no history)",
    ),
    (
        alert("dead_layer", layers=2, layer="a", usual=0.3),
        "Zero gradient since step 79 on rank 0: 2 layers, first a (usual 0.3)",
    ),
    (
        alert("layer_missing", layers=1, layer="a", usual=0.3, detail="though it requires one"),
        "No gradient since step 79: a, though it requires one (usual 0.3)",
    ),
    (
        alert("loss", value=1000.0, usual=2.33, notes=("mean of 16 frames",)),
        "Loss up since step 79 on rank 0: mean of 16 frames 1e+03 (usual 2.33)",
    ),
    (alert("loss", value=9.0, usual=2.0), "Loss up since step 79 on rank 0: 9 (usual 2)"),
    (
        alert("loss", kind="nan", value=math.nan),
        "Loss NaN since step 79 on rank 0, the gradients are finite",
    ),
    (
        alert("loss_scaler", value=4096.0, usual=65536.0),
        "Loss scale falls since step 79: 4096 (was 65536)",
    ),
    (
        alert("loss_scaler", value=0.5, threshold=1.0, usual=8.0),
        "Loss scale too low at step 79: 0.5 (limit 1)",
    ),
    (
        alert("loss_scaler", group="skips", value=3.0, notes=("in a row", "loss scale 0.5")),
        "GradScaler skips steps since step 79: 3 in a row (loss scale 0.5)",
    ),
    (
        alert("rank_divergence", ranks=(0, 1), layers=1, layer="a", value=0.25),
        "Ranks disagree since step 79: gradients of a, off by 0.25 (odd one unknown)",
    ),
    (
        alert("rank_divergence", ranks=(0, 1), layers=1, layer="a", kind="weights"),
        "Ranks disagree since step 79: weights of a, in bits (odd one unknown)",
    ),
    (
        alert("rank_divergence", ranks=(2,), layers=2, layer="a", kind="weights", value=0.25),
        "Rank 2 differs since step 79: weights of 2 layers, worst a, off by 0.25",
    ),
    (
        alert("rank_divergence", ranks=(2,), layers=1, layer="a", kind="weights"),
        "Rank 2 differs since step 79: weights of a, in bits",
    ),
    (
        alert("rank_outlier", ranks=(3,), layers=1, layer="a", value=120.0, usual=0.069),
        "Rank 3 apart since step 79: a at 120 (other ranks 0.069)",
    ),
    (alert("records_lost", ranks=(1,), value=1.0), "1 record lost since step 79 on rank 1"),
    (
        alert("gain", layer="b0 -> b1", value=3.0, threshold=2.0),
        "Gain off since step 79: b0 -> b1 at 3 (limit 2)",
    ),
    (
        alert("groups", value=0.005, threshold=0.01),
        "Gradient ratio seed/host low since step 79: 0.005 (limit 0.01)",
    ),
    (alert("not_learning"), "Learning rate 0 since step 79: the steps change no weight"),
    (alert("not_zeroed"), "Gradients not zeroed since step 79: each step adds to those before"),
    (
        alert("repeated_gradient"),
        "Gradients repeat since step 79: every norm is that of the step before",
    ),
    (alert("same_batch"), "Same batch on all ranks since step 79: their local probes are equal"),
    (
        alert("weights_unchanged", layers=2, layer="a"),
        "Weights unchanged since step 79: 2 layers, first a, though with a gradient",
    ),
    (alert("slow", value=2.4, usual=0.3), "Slow since step 79: 2.4 s a step (usual 0.3)"),
)


@pytest.mark.parametrize(("made", "says"), TABLE, ids=[says[:40] for _, says in TABLE])
def test_a_headline_says_fault_since_when_where_and_how_bad(made: Alert, says: str) -> None:
    assert headline(made) == message(made) == says
    assert len(says) <= 100


def test_every_rule_and_every_template_is_in_the_table() -> None:
    assert {made.rule for made, _ in TABLE} == {key.partition("/")[0] for key in HEADLINES}
    assert {key.partition("/")[0] for key in HEADLINES} == {rule.name for rule in REGISTRY}
    starts = {template.partition("{")[0] for template in HEADLINES.values()} - {""}
    assert all(any(says.startswith(start) for _, says in TABLE) for start in starts)


@pytest.mark.parametrize("rule", [rule.name for rule in REGISTRY])
def test_long_names_are_cut_in_the_middle_and_the_numbers_stay(rule: str) -> None:
    name = "first." + "x" * 200 + ".last"
    made = alert(rule, layers=3, layer=name, value=120.0, usual=0.069, notes=("in a row", "more"))
    text = headline(made)

    assert len(text) <= 100
    assert " step 79" in text
    assert name not in text
    if "first." in text:
        assert "….last" in text.replace("x", "")
