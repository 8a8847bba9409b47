"""Sequence numbers: each is accepted once or declared lost, never both, never neither."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwatch_server.core.sequence import SequenceResult, SequenceTracker
from gradwatch_wire.limits import MAX_SEQ

SESSION = b"s" * 16
ACCEPT, DUPLICATE, REWIND = SequenceResult.ACCEPT, SequenceResult.DUPLICATE, SequenceResult.REWIND


@pytest.mark.parametrize(
    ("acked", "seq", "low", "outcome", "gap", "then"),
    [
        (0, 1, 1, ACCEPT, None, 1),
        (4, 5, 1, ACCEPT, None, 5),
        (4, 4, 1, DUPLICATE, None, 4),
        (4, 1, 1, DUPLICATE, None, 4),
        # One is missing that the client still has.
        (4, 6, 1, REWIND, None, 4),
        (4, 6, 5, REWIND, None, 4),
        # One is missing that it no longer has.
        (4, 6, 6, ACCEPT, (5, 5), 6),
        (4, 9, 9, ACCEPT, (5, 8), 9),
        # Some are lost and some must be sent again.
        (4, 9, 7, REWIND, (5, 6), 6),
        # An old copy of a record says that later ones are gone: the gap is for the newer to tell.
        (4, 3, 9, DUPLICATE, None, 4),
        # A `low` beyond the record itself cannot be: the record is there.
        (4, 6, 99, ACCEPT, (5, 5), 6),
        (4, 5, 99, ACCEPT, None, 5),
        (0, MAX_SEQ, MAX_SEQ, ACCEPT, (1, MAX_SEQ - 1), MAX_SEQ),
    ],
)
def test_a_record_is_checked(
    acked: int, seq: int, low: int, outcome: SequenceResult, gap: tuple[int, int] | None, then: int
) -> None:
    tracker = SequenceTracker({SESSION: acked})
    checked = tracker.check(SESSION, seq, low)

    assert (checked.outcome, checked.gap) == (outcome, gap)
    assert tracker.accepted(SESSION) == then


def test_the_first_gap_is_believed_after_a_hello() -> None:
    for tracker, after in ((SequenceTracker({SESSION: 10}), 10), (SequenceTracker({}), 0)):
        tracker.open(SESSION)

        assert [tracker.is_doubtful(SESSION, seq, 51) for seq in (51, 52, 99)] == [True] * 3
        assert tracker.accepted(SESSION) == after
        assert not tracker.is_doubtful(SESSION, after + 1, after + 1)
        tracker.open(SESSION)
        assert not tracker.is_doubtful(SESSION, 51, 51)
        assert tracker.check(SESSION, 51, 51).gap == (after + 1, 50)


def test_later_gaps_are_believed_at_once() -> None:
    tracker = SequenceTracker({SESSION: 10})
    assert tracker.check(SESSION, 11, 11).outcome is ACCEPT

    assert not tracker.is_doubtful(SESSION, 51, 51)
    assert not tracker.is_doubtful(b"t" * 16, 51, 51)  # never said HELLO
    tracker.forget(SESSION)
    tracker.open(SESSION)
    assert tracker.is_doubtful(SESSION, 51, 51)


def test_a_session_that_never_said_hello_is_unknown() -> None:
    tracker = SequenceTracker({})

    assert tracker.check(SESSION, 1, 1).outcome is SequenceResult.UNKNOWN
    assert (tracker.accepted(SESSION), SESSION in tracker, len(tracker)) == (0, False, 0)
    tracker.open(SESSION)

    assert tracker.check(SESSION, 1, 1).outcome is ACCEPT
    assert (SESSION in tracker, len(tracker)) == (True, 1)


def test_opening_again_forgets_nothing() -> None:
    """A second HELLO of a session goes on where it was."""
    tracker = SequenceTracker({SESSION: 7})
    tracker.open(SESSION)

    assert tracker.accepted(SESSION) == 7


@pytest.mark.slow
@given(
    messages=st.lists(
        st.tuples(st.sampled_from([b"a", b"b"]), st.integers(1, 12), st.integers(0, 14)),
        max_size=60,
    )
)
@settings(max_examples=300)
def test_whatever_comes_each_number_is_stored_once_or_lost_once(
    messages: list[tuple[bytes, int, int]],
) -> None:
    tracker = SequenceTracker({})
    for session in (b"a", b"b"):
        tracker.open(session)
    stored: dict[bytes, list[int]] = {b"a": [], b"b": []}
    lost: dict[bytes, list[int]] = {b"a": [], b"b": []}
    for session, seq, low in messages:
        before = tracker.accepted(session)
        checked = tracker.check(session, seq, low)
        if checked.gap:
            first, last = checked.gap
            # Only what the client says it no longer has is ever given up.
            assert before < first <= last < low
            lost[session] += range(first, last + 1)
        if checked.outcome is ACCEPT:
            stored[session].append(seq)
        assert (checked.outcome is DUPLICATE) == (seq <= before)
        assert (checked.outcome is REWIND) == (seq > tracker.accepted(session))

    for session in (b"a", b"b"):
        assert stored[session] == sorted(stored[session])
        everything = sorted(stored[session] + lost[session])
        assert everything == list(range(1, tracker.accepted(session) + 1))


@pytest.mark.slow
@given(
    evicted=st.integers(0, 30),
    drops=st.lists(st.integers(0, 3), min_size=40, max_size=40),
    extra=st.integers(0, 10),
)
@settings(max_examples=200)
def test_a_client_that_goes_back_when_asked_loses_only_what_it_evicted(
    evicted: int, drops: list[int], extra: int
) -> None:
    """produced == stored + declared lost, over a line that drops messages."""
    tracker = SequenceTracker({})
    tracker.open(SESSION)
    produced = evicted + extra + 1
    stored, lost, cursor, rounds = 0, 0, evicted + 1, 0
    while tracker.accepted(SESSION) < produced:
        dropped = rounds < len(drops) and drops[rounds] == 0
        rounds += 1
        if not dropped:
            checked = tracker.check(SESSION, cursor, evicted + 1)
            stored += checked.outcome is ACCEPT
            lost += checked.gap[1] - checked.gap[0] + 1 if checked.gap else 0
            if checked.outcome is REWIND:
                cursor = tracker.accepted(SESSION)
        cursor = (
            cursor + 1 if cursor < produced else max(tracker.accepted(SESSION) + 1, evicted + 1)
        )

    assert (stored, lost) == (extra + 1, evicted)
