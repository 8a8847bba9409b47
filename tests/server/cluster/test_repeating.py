"""What a node does again and again."""

from __future__ import annotations

import logging
import threading

import pytest

from gradwatch_server.cluster.repeating import Repeating
from tests.support.waiting import wait_until


def test_an_error_that_nobody_expected_is_logged_and_not_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[int] = []

    def work() -> None:
        done.append(1)
        if len(done) == 1:
            msg = "nobody thought of that"
            raise ZeroDivisionError(msg)

    looks = Repeating("looks", work, every_s=0.01)
    with caplog.at_level(logging.ERROR):
        looks.start()
        wait_until(lambda: len(done) > 2, "it goes on")
    looks.stop()

    assert not looks.is_alive()
    assert [line for line in caplog.messages if line == "looks failed; it is tried again"]
    assert "nobody thought of that" in caplog.text


def test_it_can_be_woken_and_ends_without_waiting_for_its_pause() -> None:
    done = threading.Semaphore(0)
    looks = Repeating("looks", done.release, every_s=3600.0)
    looks.start()
    assert done.acquire(timeout=30)
    looks.wake()
    assert done.acquire(timeout=30)
    looks.stop()
    assert not looks.is_alive()


def test_what_hangs_is_not_waited_for_longer_than_said() -> None:
    go_on = threading.Event()
    looks = Repeating("looks", go_on.wait, every_s=3600.0, stop_s=0.05)
    looks.start()
    looks.stop()
    assert looks.is_alive()
    assert looks.is_stopping
    go_on.set()
    wait_until(lambda: not looks.is_alive(), "it ends")


def test_one_that_was_never_begun_can_be_stopped() -> None:
    Repeating("looks", lambda: None, every_s=1.0).stop()
