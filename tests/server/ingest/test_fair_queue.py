"""The fair queue: who costs much waits, all is bounded, and no message is lost without a word."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwatch_server.ingest.fair_queue import FIRST_S, HEAD_START_S, MAX_IDLE, FairQueue

WORK_S = 0.02
ROOM = 1 << 20


def queue_of(max_bytes: int = ROOM, max_bytes_per_peer: int = ROOM) -> FairQueue[int]:
    return FairQueue(max_bytes, max_bytes_per_peer)


def turn(queue: FairQueue[int], cost_s: dict[bytes, float]) -> list[bytes]:
    """Take a turn in which each message costs what its peer's do; return whose they were."""
    whose = []
    for peer, _ in queue.turn(WORK_S):
        queue.charge(peer, cost_s[peer])
        whose.append(peer)
    return whose


def test_a_dear_peer_waits_and_others_do_not() -> None:
    queue, cost_s = queue_of(), {b"dear": 0.5, b"cheap": 0.001}
    for number in range(200):
        queue.put(b"dear", number, 1)
    turn(queue, cost_s)  # now it is known what it costs
    for number in range(50):
        queue.put(b"cheap", number, 1)
        whose = turn(queue, cost_s)
        assert whose[0] == b"cheap"
        turn(queue, cost_s)


def test_two_that_always_send_get_the_same_time() -> None:
    queue, cost_s = queue_of(), {b"dear": 0.05, b"cheap": 0.001}
    spent_s = dict.fromkeys(cost_s, 0.0)
    waiting: Counter[bytes] = Counter()
    for _ in range(500):
        for peer in cost_s:
            while waiting[peer] < 100:
                queue.put(peer, 0, 1)
                waiting[peer] += 1
        for peer in turn(queue, cost_s):
            spent_s[peer] += cost_s[peer]
            waiting[peer] -= 1

    assert 0.8 < spent_s[b"dear"] / spent_s[b"cheap"] < 1.25


def test_a_turn_is_bounded_by_what_it_is_expected_to_cost() -> None:
    queue, cost_s = queue_of(), {b"a": 0.004, b"b": 0.004}
    for number in range(400):
        queue.put(b"ab"[number % 2 :][:1], number, 1)
    assert len(turn(queue, cost_s)) * FIRST_S == pytest.approx(WORK_S, rel=0.05)
    assert len(turn(queue, cost_s)) in (4, 5)


def test_a_message_that_fills_a_turn_alone_is_the_only_such_in_it() -> None:
    queue, cost_s = queue_of(), {b"one": 0.3, b"two": 0.3, b"cheap": 0.001}
    for _ in range(2):
        for peer in cost_s:
            for number in range(3):
                queue.put(peer, number, 1)
        turn(queue, cost_s)
    while queue:
        whose = Counter(turn(queue, cost_s))
        assert whose[b"one"] + whose[b"two"] <= 1


@pytest.mark.parametrize(("num_dear", "is_with_it"), [(60, True), (80, False)])
def test_a_turn_looks_past_some_dear_peers_for_a_cheap_one(num_dear: int, is_with_it: bool) -> None:
    """Not past all: a turn with thousands of them would take as long as many messages."""
    queue = queue_of()
    cost_s = {f"dear {number}".encode(): 0.3 for number in range(num_dear)} | {b"cheap": 0.001}
    for peer in cost_s:
        for _ in range(1_000 if peer == b"cheap" else 2):
            queue.put(peer, 0, 1)
    while queue:
        turn(queue, cost_s)
    for peer in cost_s:
        queue.put(peer, 0, 1)

    assert (b"cheap" in turn(queue, cost_s)) is is_with_it


def test_ranks_of_a_run_are_served_alike() -> None:
    queue, cost_s = queue_of(), {b"last": 0.004, b"other": 0.0002}
    for number in range(2_000):
        for peer in cost_s:
            queue.put(peer, number, 1)
            queue.join(peer, "run")
    taken: Counter[bytes] = Counter()
    while queue:
        taken.update(turn(queue, cost_s))
        assert abs(taken[b"last"] - taken[b"other"]) <= 20


def test_being_alone_is_no_debt() -> None:
    queue, cost_s = queue_of(), {b"old": 0.01, b"new": 0.01}
    for number in range(1_000):
        queue.put(b"old", number, 1)
        turn(queue, cost_s)
    for number in range(100):
        queue.put(b"old", number, 1)
        queue.put(b"new", number, 1)
    first = [peer for _ in range(20) for peer in turn(queue, cost_s)]

    lead = first.count(b"new") - first.count(b"old")
    assert abs(lead) * 0.01 <= HEAD_START_S + WORK_S


def test_thousands_that_come_back_hold_up_nobody_who_was_alone_before() -> None:
    others = [number.to_bytes(2, "big") for number in range(1_000)]
    queue, cost_s = queue_of(), {b"early": 0.001} | dict.fromkeys(others, 1e-6)
    for other in others:
        queue.put(other, 0, 1)
    while queue:
        turn(queue, cost_s)
    cost_s |= dict.fromkeys(others, 0.001)
    for number in range(20):
        queue.put(b"early", number, 1)
        turn(queue, cost_s)
    queue.put(b"early", 0, 1)
    before: list[bytes] = []
    while b"early" not in before:
        for other in others:
            if not queue.holds(other):
                queue.put(other, 0, 1)
        before += turn(queue, cost_s)

    assert len(before) <= 3 * len(others)


def test_one_peer_cannot_fill_the_queue() -> None:
    queue = queue_of(max_bytes=1_000, max_bytes_per_peer=300)
    dropped = [pair for n in range(10) for pair in queue.put(b"greedy", n, 100)]

    assert dropped == [(b"greedy", n) for n in range(3, 10)]
    assert queue.put(b"honest", 0, 100) == []
    assert (queue.num_bytes, queue.num_dropped) == (400, 7)
    assert not queue.has_room(b"greedy")
    assert queue.has_room(b"honest")


def test_where_all_is_full_the_one_with_most_loses_its_newest() -> None:
    queue = queue_of(max_bytes=1_000, max_bytes_per_peer=900)
    for number in range(9):
        queue.put(b"greedy", number, 100)
    assert queue.put(b"honest", 0, 50) == []
    assert queue.put(b"honest", 1, 100) == [(b"greedy", 8)]
    assert (queue.num_bytes, queue.num_dropped) == (950, 1)


def test_peers_that_are_gone_are_forgotten() -> None:
    queue = queue_of()
    for number in range(3 * MAX_IDLE):
        queue.put(number.to_bytes(4, "big"), number, 1)
        turn(queue, {number.to_bytes(4, "big"): 0.001})

    assert len(queue._peers) <= MAX_IDLE + 1


@pytest.mark.slow
@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 4), st.integers(1, 400)),  # a message of a peer, its bytes
            st.floats(0.0, 1.0),  # a turn in which each message costs so much
        ),
        max_size=200,
    )
)
def test_whatever_is_put_in_comes_out_in_order_or_is_dropped(events: list[object]) -> None:
    queue = queue_of(max_bytes=1_000, max_bytes_per_peer=500)
    expected: dict[bytes, deque[int]] = {bytes([n]): deque() for n in range(5)}
    for number, event in enumerate(events):
        if isinstance(event, tuple):
            peer = bytes([event[0]])
            expected[peer].append(number)
            for whose, message in queue.put(peer, number, event[1]):
                assert expected[whose].pop() == message
        else:
            assert isinstance(event, float)
            for peer, message in queue.turn(WORK_S):
                assert expected[peer].popleft() == message
                queue.charge(peer, event)
        assert queue.num_bytes <= 1_000
    while queue:
        for peer, message in queue.turn(WORK_S):
            assert expected[peer].popleft() == message
    assert not any(expected.values())
    assert queue.num_bytes == 0
