"""When it is time for the next endpoint: no socket, and the time is an argument."""

from __future__ import annotations

import logging

import pytest

from gradwatch._faults import Faults
from gradwatch._transport.connection import RECONNECT_MAX_S
from gradwatch._transport.route import SILENT_AFTER_S, Route

A, B, C = "tcp://a:1", "tcp://b:2", "tcp://c:3"
ROUND_S = 0.02


class Way:
    """A route whose clock the test moves; who is not heard of refuses connections, or is silent."""

    def __init__(self, *endpoints: str) -> None:
        self.now_s = 1000.0
        self.faults = Faults()
        self.route = Route(endpoints, self.now_s, has_key=False, faults=self.faults)
        self.moves: list[tuple[float, str]] = []

    def go(self, seconds: float, *, refused: bool = False, answers: tuple[str, ...] = ()) -> None:
        """Let rounds pass; some endpoints answer in each, of the others all refuse, or none."""
        for _ in range(round(seconds / ROUND_S)):
            self.now_s += ROUND_S
            if self.route.endpoint in answers:
                self.route.answered(self.now_s)
            is_lost = refused and self.route.endpoint not in answers
            if self.route.is_to_leave(self.now_s, is_lost=is_lost):
                self.route.moved(self.now_s)
                self.moves.append((self.now_s, self.route.endpoint))


def test_one_alone_is_never_left() -> None:
    """However long it is silent or refuses."""
    way = Way(A)
    way.go(60.0)
    way.go(60.0, refused=True)

    assert (way.moves, way.route.others) == ([], [])


def test_who_answers_is_not_left() -> None:
    """Nor is one that was silent for less than three beats."""
    way = Way(A, B)
    for _ in range(5):
        way.go(SILENT_AFTER_S - 0.1)
        way.go(0.04, answers=(A,))

    assert way.moves == []


def test_who_is_silent_for_three_beats_is_left_for_good() -> None:
    """The next one that answers keeps it, also when the first one is back."""
    way = Way(A, B, C)
    way.go(1.0, answers=(A,))
    silent_s = way.now_s
    way.go(60.0, answers=(C,))
    way.go(60.0, answers=(A, B, C))

    assert [where for _, where in way.moves] == [B, C]
    first, second = (at_s - silent_s for at_s, _ in way.moves)
    assert first == pytest.approx(SILENT_AFTER_S, abs=0.1)
    assert second == pytest.approx(2 * SILENT_AFTER_S, abs=0.1)
    assert (way.route.endpoint, way.route.others, way.route.num_moves) == (C, [A, B], 2)


def test_who_refuses_is_left_at_once() -> None:
    """Nothing is to be waited for there."""
    way = Way(A, B)
    way.go(1.0, answers=(A,))
    refused_s = way.now_s
    way.go(1.0, refused=True, answers=(B,))

    ((at_s, where),) = way.moves
    assert where == B
    assert at_s - refused_s == pytest.approx(ROUND_S)


def test_where_all_refuse_it_rests_after_each_round_and_longer_each_time() -> None:
    """The others are tried at once; between rounds it is as patient as ZeroMQ."""
    way = Way(A, B, C)
    way.go(60.0, refused=True)
    assert [where for _, where in way.moves[:7]] == [B, C, A, B, C, A, B]
    times_s = [at_s for at_s, _ in way.moves]
    rests_s = [later - sooner for sooner, later in zip(times_s[1::3], times_s[2::3], strict=False)]
    within_s = [times_s[number + 1] - times_s[number] for number in (0, 2, 3)]

    assert within_s == pytest.approx([ROUND_S] * 3)
    assert 0.05 <= rests_s[0] <= 0.1 + 2 * ROUND_S
    assert 0.2 <= rests_s[2] <= 0.4 + 2 * ROUND_S
    assert max(rests_s) <= RECONNECT_MAX_S + 2 * ROUND_S
    assert all(rest_s >= RECONNECT_MAX_S / 2 for rest_s in rests_s[6:])
    assert len(rests_s) < 60

    way.go(RECONNECT_MAX_S + 1, refused=True, answers=(B,))
    assert way.route.endpoint == B
    num_moves = len(way.moves)
    way.go(0.1, refused=True)
    assert len(way.moves) > num_moves, "after an answer it is not patient any more"


def test_a_process_that_slept_takes_nobody_for_silent() -> None:
    """It asked nobody meanwhile: a long hold of the interpreter's lock, a SIGSTOP."""
    way = Way(A, B)
    way.go(1.0, answers=(A,))
    way.now_s += 600.0
    way.go(1.0)
    way.go(1.0, answers=(A,))

    assert way.moves == []


def test_where_records_go_is_told_once_they_do(caplog: pytest.LogCaptureFixture) -> None:
    """The first time as a warning; those that are only tried are not told."""
    way = Way(A, B, C)
    with caplog.at_level(logging.INFO, logger="gradwatch"):
        way.go(1.0, refused=True, answers=(C,))
        way.go(1.0, refused=True, answers=(A,))

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"gradwatch: {A} did not answer in time; records go to {C} (told once)"),
        ("INFO", f"gradwatch: {C} did not answer in time; records go to {A}"),
    ]
    assert way.faults.counts.total() == 0


def test_why_records_are_left_is_said_of_each() -> None:
    """Those with the same reason together."""
    way = Way(A, B, C)
    nobody = "no aggregator answered; start one there (gradwatch serve), or set "
    nobody += "attach(endpoint=...) or GRADWATCH_ENDPOINT"
    assert way.route.describe(way.now_s) == f"{A}, {B}, {C}: {nobody}"
    way.go(1.0, refused=True, answers=(B,))
    way.now_s += 9.0

    gone = "the aggregator stopped answering 9 s ago"
    assert way.route.describe(way.now_s) == f"{A}, {C}: {nobody}; {B}: {gone}"
    assert Way(A).route.describe(0.0) == f"{A}: {nobody}"
