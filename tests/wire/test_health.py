"""The formula of health, and the names that runs may have."""

from __future__ import annotations

import math

import pytest

from gradwatch_wire.health import (
    EXPLODING_HEALTH_PENALTY,
    EXPLODING_THRESHOLD,
    VANISHING_HEALTH_PENALTY,
    VANISHING_THRESHOLD,
    health_score,
    is_run_name,
    nonfinite_kind,
    normalized_ratio,
)


def test_the_constants_are_those_of_the_source_documents() -> None:
    """Thresholds and penalties have the documented defaults."""
    assert (VANISHING_THRESHOLD, EXPLODING_THRESHOLD) == (1e-7, 100.0)
    assert (VANISHING_HEALTH_PENALTY, EXPLODING_HEALTH_PENALTY) == (0.5, 0.8)


@pytest.mark.parametrize(
    ("vanishing", "exploding", "expected"),
    [
        (0.0, 0.0, 1.0),
        (1.0, 0.0, 0.5),
        (0.0, 1.0, 0.2),
        (0.5, 0.5, 0.35),
        (0.25, 0.125, 0.775),
        (0.0, 1 / 300, 1 - 0.8 / 300),
    ],
)
def test_health_falls_with_the_shares_of_bad_layers(
    vanishing: float, exploding: float, expected: float
) -> None:
    """The score is 1 - 0.5 v - 0.8 e."""
    assert health_score(vanishing, exploding) == pytest.approx(expected, rel=1e-12)


def test_health_never_leaves_0_to_1() -> None:
    assert health_score(1.0, 1.0).hex() == (0.0).hex()
    assert health_score(1.0, 0.0, vanishing_penalty=-3.0) == 1.0


def test_a_caller_can_change_the_penalties() -> None:
    assert health_score(0.5, 0.25, vanishing_penalty=0.2) == pytest.approx(0.7)
    assert health_score(0.5, 0.25, exploding_penalty=1.0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "inf"),
        (0.0, None),
        (5e-324, None),
        (1.7976931348623157e308, None),
    ],
)
def test_a_number_is_nan_or_inf_or_finite(value: float, expected: str | None) -> None:
    """Either infinity is `inf`; the largest and the smallest finite numbers are finite."""
    assert nonfinite_kind(value) == expected


@pytest.mark.parametrize("name", ["a", "0", "gpt-ablation.3", "A_b-c.D", "a..b", "x" * 128])
def test_a_plain_name_is_a_run_name(name: str) -> None:
    """Letters, digits, dots, underscores and hyphens make a name of up to 128."""
    assert is_run_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "-rf",
        "_x",
        "a/b",
        "a b",
        "a\n",
        "\na",
        "a\0",
        "a%2f",
        "é",
        "a\u0660",  # a digit to str.isdigit(), not to us
        "x" * 129,
        "a\x1b[31m",
    ],
)
def test_a_name_that_could_be_misread_is_no_run_name(name: str) -> None:
    assert not is_run_name(name)


@pytest.mark.parametrize(
    ("seed_norm", "seed_numel", "host_norm", "host_numel", "ratio"),
    [
        (3.0, 9, 2.0, 4, 1.0),
        (1.0, 4, 4.0, 16, 0.5),
        (0.0, 4, 1.0, 4, 0.0),
        (1.0, 4, 0.0, 4, 0.0),
        (1.0, 0, 1.0, 4, 0.0),
        (1.0, 4, 1.0, 0, 0.0),
        (5e-324, 4, 5e-324, 4, 1.0),
        (1.0, 4, 5e-324, 4, math.inf),
        (1e308, 1, 1e-308, 1, math.inf),
        (1e-308, 1, 1e308, 1, 0.0),
        (math.inf, 1, 1.0, 1, math.inf),
        (1.0, 1, math.inf, 1, 0.0),
    ],
)
def test_the_ratio_of_two_groups(
    seed_norm: float, seed_numel: int, host_norm: float, host_numel: int, ratio: float
) -> None:
    assert normalized_ratio(seed_norm, seed_numel, host_norm, host_numel) == pytest.approx(ratio)


@pytest.mark.parametrize(("seed", "host"), [(math.nan, 1.0), (1.0, math.nan), (math.inf, math.inf)])
def test_the_ratio_of_what_is_unknown_is_nan(seed: float, host: float) -> None:
    assert math.isnan(normalized_ratio(seed, 1, host, 1))
