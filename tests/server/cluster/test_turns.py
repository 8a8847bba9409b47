"""Turns: one engine works at a time, in the order in which they asked, and none for long."""

from __future__ import annotations

import threading
import time

from gradwatch_server.cluster.messages.turns import Turn, Turns
from tests.support.waiting import PATIENCE_S, wait_until


def test_one_works_at_a_time_in_the_order_in_which_they_asked() -> None:
    turns = Turns(hold_s=PATIENCE_S)
    first = Turn(turns)
    first.begin()
    worked: list[int] = []
    working = threading.Semaphore(1)

    def work(number: int) -> None:
        turn = Turn(turns)
        turn.begin()
        assert working.acquire(blocking=False)
        worked.append(number)
        time.sleep(0.001)
        working.release()
        turn.end()

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=work, args=(number,)))
        threads[-1].start()
        wait_until(lambda: len(turns._waiting) == len(threads), "it waits")
    assert worked == []
    first.end()
    for thread in threads:
        thread.join()
    assert worked == [0, 1, 2, 3, 4]


def test_one_that_works_already_goes_on_and_one_that_rests_may_rest_again() -> None:
    turns = Turns(hold_s=PATIENCE_S)
    turn, other = Turn(turns), Turn(turns)
    turn.begin()
    turn.begin()
    turn.end()
    turn.end()
    other.begin()  # would wait for ever
    other.end()


def test_one_that_holds_its_turn_for_long_keeps_nobody_waiting() -> None:
    turns = Turns(hold_s=0.05)
    slow, other, third = Turn(turns), Turn(turns), Turn(turns)
    slow.begin()
    began_s = time.monotonic()
    other.begin()
    assert time.monotonic() - began_s < PATIENCE_S
    slow.end()  # which has it no more: it is not given on from here
    assert turns._current is other
    other.end()
    third.begin()
    assert turns._current is third
