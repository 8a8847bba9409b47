"""Rules that are asked about a frame, and their answers."""

from __future__ import annotations

import numpy as np

from gradwatch_server.core.alerting.flags import ALL_SIGNS, Flags, find_flags
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.base import Sign
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.frames.gains import GainFrame
from tests.support.core import frame_of, judged, part_of

NAN = float("nan")


def test_flags_know_which_rules_found_something() -> None:
    flags = Flags({"calm": np.zeros(2, dtype=np.bool_), "loud": np.array([False, True])})
    assert flags.raised == ["loud"]


def test_a_frame_raises_what_is_wrong_in_it() -> None:
    wrong, calm = frame_of(part_of([NAN, 500.0])), frame_of(part_of([1.0, 1.0]))
    for frame, raised in ((wrong, ["nonfinite", "exploding"]), (calm, [])):
        assert find_flags(frame, Rules(), judged(frame, "a", "b")).raised == raised


def test_a_rule_that_is_off_is_asked_only_if_health_counts_it() -> None:
    rules = Rules.model_validate({name: {"enabled": False} for name in ("exploding", "gain")})
    assert [name for name, _ in rules.flagging[Frame, ALL_SIGNS]].count("exploding") == 1
    assert list(rules.flagging[GainFrame, ALL_SIGNS]) == []
    frame = frame_of(part_of([500.0]))
    assert find_flags(frame, rules, judged(frame, "a")).raised == ["exploding"]


def test_of_a_calm_frame_only_those_are_asked_that_may_find_something() -> None:
    assert [*Rules().flagging[Frame, int(Sign.ALWAYS)]] == []
    unusual = {name for name, _ in Rules().flagging[Frame, int(Sign.ALWAYS | Sign.UNUSUAL)]}
    assert unusual == {"exploding", "loss", "slow", "vanishing"}


def test_a_norm_is_small_by_the_limit_that_is_set() -> None:
    frame = frame_of(part_of([1e-3, 1.0]))
    context = judged(frame, "a.weight", "b.weight")
    set_higher = Rules.model_validate({"vanishing": {"limit": 0.01, "clear": 0.02}})

    assert find_flags(frame, Rules(), context).raised == []
    assert find_flags(frame, set_higher, context).raised == ["vanishing"]
