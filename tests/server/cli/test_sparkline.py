"""A curve in one line: nothing that is not finite, zero or missing looks like a value."""

from __future__ import annotations

import pytest

from gradwatch_server.cli.sparkline import sparkline


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1.0, 10.0, 100.0], "▁▅█"),
        ([1.0, 1.05, 0.95], "▅▅▄"),  # what hardly moves is drawn nearly flat
        ([5.0], "▅"),
        ([1.0, "NaN", "Infinity", "-Infinity", None, 0.0, 100.0], "▁▼▼▼·0█"),
        (["NaN", None], "▼·"),
        ([1e-300, 1e300], "▁█"),
        ([], ""),
    ],
)
def test_each_value_is_a_character(values: list[float | str | None], shown: str) -> None:
    assert sparkline(values, len(values)).plain == shown


def test_the_newest_are_kept_and_stand_right() -> None:
    assert sparkline([1.0, 2.0, 1.0, 100.0], 2).plain == "▁█"
    assert sparkline([1.0, 100.0], 4).plain == "  ▁█"
