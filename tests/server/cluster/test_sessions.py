"""Where messages of a session go, and who is made to say where it is."""

from __future__ import annotations

import pytest

from gradwatch_server.cluster.messages import sessions as module
from gradwatch_server.cluster.messages.sessions import STALLED_S, Sessions

ONE, TWO = b"1" * 16, b"2" * 16


def stalled(sessions: Sessions, now_s: float) -> list[bytes]:
    return [session for session, _ in sessions.stalled(now_s)]


def test_a_session_keeps_its_partition_whatever_it_says_later() -> None:
    sessions = Sessions()
    sessions.open(ONE, 3, b"p")
    assert sessions.open(ONE, 4, b"q").partition == 3


def test_one_of_which_all_is_acknowledged_is_left_alone() -> None:
    sessions = Sessions()
    sessions.open(ONE, 3, b"p")
    sessions.note_sent(ONE, b"p", 1, 0.0)
    sessions.note_acked(ONE, 1, 1.0)
    assert stalled(sessions, 10 * STALLED_S) == []


def test_one_that_waits_in_vain_is_asked_again_and_again() -> None:
    sessions = Sessions()
    sessions.open(ONE, 3, b"p")
    sessions.note_sent(ONE, b"p", 1, 0.0)
    sessions.note_sent(ONE, b"p", 2, 4.0)
    assert stalled(sessions, STALLED_S - 0.1) == []
    assert stalled(sessions, STALLED_S) == [ONE]
    assert stalled(sessions, STALLED_S + 1) == []
    assert stalled(sessions, 2 * STALLED_S) == [ONE]


def test_one_that_is_slow_but_gets_on_is_left_alone() -> None:
    sessions = Sessions()
    sessions.open(ONE, 3, b"p")
    for seq in range(1, 20):
        sessions.note_sent(ONE, b"p", seq + 5, seq * STALLED_S / 2)
        sessions.note_acked(ONE, seq, seq * STALLED_S / 2)
        assert stalled(sessions, seq * STALLED_S / 2) == []


def test_one_of_which_something_was_lost_is_asked_at_once_where_it_is_now() -> None:
    sessions = Sessions()
    sessions.open(ONE, 3, b"p")
    sessions.note_sent(ONE, b"q", 1, 0.0)
    sessions.note_lost(ONE)
    sessions.note_lost(TWO)  # nobody knows it
    ((session, route),) = sessions.stalled(0.1)
    assert (session, route.peer) == (ONE, b"q")


def test_the_one_that_was_silent_longest_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 2)
    sessions = Sessions()
    sessions.open(ONE, 3, b"p")
    sessions.note_sent(ONE, b"p", 1, 0.0)
    sessions.open(TWO, 3, b"p")
    sessions.note_sent(TWO, b"p", 1, 0.0)
    sessions.note_sent(ONE, b"p", 2, 1.0)
    sessions.open(b"3" * 16, 3, b"p")
    assert sessions.find(TWO) is None
    assert sessions.find(ONE) is not None
    sessions.note_acked(TWO, 1, 2.0)
    assert stalled(sessions, 2 * STALLED_S) == [ONE]
