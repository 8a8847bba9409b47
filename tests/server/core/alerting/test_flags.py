"""Which rules are asked about a frame, and what is known of their answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gradwatch_server.core.alerting.rules.imbalance import ImbalanceRule

from gradwatch_server.core.alerting.flags import Flags, find_flags
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.frames.frame import Frame
from tests.support.core import context_of, frame_of, part_of

NAN = float("nan")


def test_flags_know_which_rules_found_something() -> None:
    flags = Flags({"calm": np.zeros(2, dtype=np.bool_), "loud": np.array([False, True])})
    assert flags.raised == ["loud"]


def test_a_frame_raises_what_is_wrong_in_it() -> None:
    wrong, calm = frame_of(part_of([NAN, 500.0])), frame_of(part_of([1.0, 1.0]))
    assert find_flags(wrong, Rules(), context_of("a", "b")).raised == ["nonfinite", "exploding"]
    assert find_flags(calm, Rules(), context_of("a", "b")).raised == []


def test_a_rule_that_is_off_is_asked_only_if_health_counts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`imbalance` is off by default; `exploding` counts towards health all the same."""

    def fail(*_arguments: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(ImbalanceRule, "raised", fail)
    rules = Rules.model_validate({"exploding": {"enabled": False}})
    assert [name for name, _ in rules.flagging(Frame)].count("exploding") == 1
    flags = find_flags(frame_of(part_of([500.0])), rules, context_of("a"))
    assert flags.raised == ["exploding"]
