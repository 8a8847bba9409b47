"""When it is time for the next endpoint: no socket, and the time is an argument."""

from __future__ import annotations

import logging

import pytest

from gradwatch._faults import Faults
from gradwatch._transport.route import SILENT_AFTER_S, UNCONNECTED_AFTER_S, Route

A, B, C = "tcp://a:1", "tcp://b:2", "tcp://c:3"
ROUND_S = 0.02


class Way:
    """A route whose clock the test moves; endpoints that do not answer refuse, or are silent."""

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
            is_connected = not refused or self.route.endpoint in answers
            if self.route.is_to_leave(self.now_s, is_connected=is_connected):
                self.route.moved(self.now_s)
                self.moves.append((self.now_s, self.route.endpoint))


def test_one_alone_is_connected_to_anew_only_where_it_takes_no_connection() -> None:
    """ZeroMQ gives up where a handshake was refused; that is no move."""
    way = Way(A)
    way.go(60.0)
    assert way.moves == []

    way.go(4 * SILENT_AFTER_S, refused=True)
    assert {where for _, where in way.moves} == {A}
    assert (way.route.others, way.route.num_moves) == ([], 0)


@pytest.mark.parametrize("refused", [False, True])
def test_one_that_does_not_answer_is_left_for_good(refused: bool) -> None:
    way = Way(A, B, C)
    way.go(1.0, answers=(A,))
    gone_s = way.now_s
    way.go(30.0, refused=refused, answers=(C,))
    way.go(30.0, answers=(A, B, C))

    limit_s = UNCONNECTED_AFTER_S if refused else SILENT_AFTER_S
    assert [where for _, where in way.moves] == [B, C]
    first, second = (at_s - gone_s for at_s, _ in way.moves)
    assert (first, second) == pytest.approx((limit_s, 2 * limit_s), abs=0.1)
    assert (way.route.endpoint, way.route.others, way.route.num_moves) == (C, [A, B], 2)


def test_after_the_last_comes_the_first() -> None:
    way = Way(A, B, C)
    way.go(7.5 * UNCONNECTED_AFTER_S, refused=True)

    assert [where for _, where in way.moves] == [B, C, A, B, C, A, B]


def test_where_records_go_is_told_once_they_do(caplog: pytest.LogCaptureFixture) -> None:
    way = Way(A, B, C)
    with caplog.at_level(logging.INFO, logger="gradwatch"):
        way.go(3.0, refused=True, answers=(C,))
        way.go(3.0, refused=True, answers=(A,))

    told = f"gradwatch: {A} did not answer in time; records go to {C} (told once)"
    assert [record.getMessage() for record in caplog.records] == [told]
    assert way.faults.counts.total() == 0


def test_why_records_are_left_is_said() -> None:
    way = Way(A)
    assert way.route.describe(way.now_s).startswith("no aggregator answered; start one there")

    way.route.answered(10.0)
    assert way.route.describe(10.5) == (
        "the aggregator answered 0.5 s ago, but had not stored them in the 2 s that close() waits"
    )
    assert way.route.describe(17.2) == "the aggregator stopped answering 7 s ago"
