"""The benchmark of a cluster's faults: how it counts what is missing, doubled and silent."""

from __future__ import annotations

import pytest

from benchmarks.cluster_faults.arrivals import Arrival, compare, longest_pause, longest_silence
from benchmarks.cluster_faults.measure import Row
from benchmarks.cluster_faults.table import SECTION, wrongs_of


def arrival(
    cursor: int, alert: str, state: str = "firing", at_s: float = 0.0, run: str = "a"
) -> Arrival:
    return Arrival(cursor, (alert, state), "nonfinite", run, is_news=False, arrived_s=at_s)


def test_an_alert_is_told_once_fires_and_is_resolved() -> None:
    wanted = [arrival(1, "x"), arrival(2, "x", "resolved"), arrival(3, "y")]
    found = compare(wanted, [arrival(7, "y"), arrival(8, "x"), arrival(9, "x", "resolved")])
    assert (found.expected, found.missing, found.doubled, found.other) == (3, (), (), ())

    found = compare(wanted, [arrival(1, "x"), arrival(2, "x"), arrival(3, "z")])
    assert found.missing == (("x", "resolved"), ("y", "firing"))
    assert found.doubled == (("x", "firing"),)
    assert found.other == (("z", "firing"),)


def test_news_of_an_alert_may_come_more_than_once() -> None:
    news = Arrival(2, ("x", "firing"), "nonfinite", "a", is_news=True, arrived_s=0.0)
    found = compare([arrival(1, "x")], [arrival(1, "x"), news, news])
    assert (found.expected, found.doubled) == (1, ())


def test_what_came_twice_under_one_cursor_is_doubled() -> None:
    assert compare([arrival(1, "x")], [arrival(1, "x"), arrival(1, "x")]).doubled


@pytest.mark.parametrize(
    ("times_s", "expected_s"),
    [
        ([1.0, 2.0, 9.0, 10.0], 7.0),  # also where it begins before the window and ends after it
        ([1.0, 20.0], 19.0),
        ([1.0, 2.0, 30.0, 50.0, 60.0], 28.0),  # what begins after the window is not of it
        ([1.0], 7.0),  # nothing came any more: until the end at least
        ([], 4.0),
        ([6.0, 6.5, 9.0], 2.5),
    ],
)
def test_a_pause_is_that_between_two_that_touches_the_window(
    times_s: list[float], expected_s: float
) -> None:
    assert longest_pause(times_s, 4.0, 8.0) == expected_s


def test_a_silence_is_that_of_one_run_less_its_pace() -> None:
    """What came of another run is no consolation; what is resolved, or news, is no sign of life."""
    arrivals = [arrival(n, f"a{n}", at_s=0.5 * n) for n in range(40)]
    arrivals += [arrival(50, "b0", at_s=1.0, run="b"), arrival(51, "b1", at_s=7.0, run="b")]
    arrivals += [arrival(52, "b0", "resolved", at_s=3.0, run="b")]
    assert longest_silence(arrivals, ["a", "b"], 2.0, 6.5, 0.5) == 5.5
    assert longest_silence(arrivals, ["a"], 2.0, 6.5, 0.5) == 0.0


def test_what_must_not_be_is_said() -> None:
    good = compare([arrival(1, "x")], [arrival(1, "x")])
    assert wrongs_of(Row("x", produced=5, stored=4, lost=1, differences=[good])) == []
    bad = compare([arrival(1, "x")], [arrival(2, "y")])
    assert wrongs_of(Row("x", produced=5, stored=4, differences=[good, bad])) == [
        "1 records neither stored nor declared as lost",
        "reader 1: 1 alerts missing, such as x firing",
        "reader 1: 1 alerts other, such as y firing",
    ]


def test_the_page_has_the_place_of_the_table() -> None:
    page = SECTION.filled(SECTION.read(), "| a |")
    assert page.count(SECTION.begin) == 1
