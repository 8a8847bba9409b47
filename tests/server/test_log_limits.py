"""Lines that peers cause in the log: once each, and counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from gradwatch_server.budgets import Budgets, BudgetUse
from gradwatch_server.log_limits import GUARDED, MAX_TOLD, WINDOW_S, LogLimits

logger = logging.getLogger(GUARDED[0])


class Log:
    """A guarded logger, and the time."""

    def __init__(self, caplog: pytest.LogCaptureFixture, **budgets: int) -> None:
        self.now_s = 0.0
        self.use = BudgetUse(Budgets(**budgets))
        self.limits = LogLimits(self.use, lambda: self.now_s)
        self._caplog = caplog

    def tell(self, text: str, *arguments: object, peer: str) -> None:
        logger.warning(text, *arguments, extra={"peer": peer})

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Log]:
    made = Log(caplog, log_lines_per_min=20)
    with made.limits.guarding():
        yield made


def test_a_kind_is_told_once_for_each_peer(log: Log) -> None:
    """S33: whatever is filled in; further ones are counted and told of after a minute."""
    for number in range(300):
        log.tell("nonsense: %d", number, peer="10.0.0.1")
    log.tell("nonsense: %d", 7, peer="10.0.0.2")
    log.tell("slow", peer="10.0.0.1")
    assert log.lines == ["nonsense: 0", "nonsense: 7", "slow"]
    assert log.use["log_lines_per_min"].num_refused == 299
    log.now_s = WINDOW_S
    log.limits.report()

    assert log.lines[3:] == ["left out in the last minute: 299 more from 10.0.0.1: nonsense: %d"]
    log.tell("slow", peer="10.0.0.1")
    assert log.lines[4:] == ["slow"]


def test_peers_without_number_fill_neither_log_nor_memory(log: Log) -> None:
    for number in range(1_000):
        for _ in range(2):
            log.tell("nonsense", peer=f"10.0.{number // 250}.{number % 250}")
    assert len(log.lines) == 20
    log.now_s = WINDOW_S
    log.limits.report()

    told = log.lines[20:]
    assert len(told) == MAX_TOLD + 1
    counts = [int(line.split(": ")[1].split()[0]) for line in told]
    assert sum(counts) == 2_000 - 20
    assert log.use["log_lines_per_min"].num_refused == 1_980


def test_a_traceback_of_the_event_loop_is_told_once(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """S29: its text names objects, so that the first line says what kind it is."""
    loop = asyncio.new_event_loop()
    for number in range(5):
        told = f"socket.accept() out of system resource\nsocket: <{number}>"
        loop.call_exception_handler({"message": told})
    loop.close()

    assert len(caplog.records) == 1


def test_other_loggers_are_left_alone(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        logging.getLogger("gradwatch_server.engine").warning("ours")
    assert len(caplog.records) == 3
    assert all(log.limits in logging.getLogger(name).filters for name in GUARDED)


def test_nothing_is_limited_afterwards(caplog: pytest.LogCaptureFixture) -> None:
    """The filters go with the service."""
    with Log(caplog).limits.guarding():
        pass

    assert not any(logging.getLogger(name).filters for name in GUARDED)
