"""Accepting connections: few at a time, and which of them make room."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from gradwatch_server.api.acceptor import ACCEPTS, SLICE_S, Acceptor
from gradwatch_server.api.connection_limits import (
    ASKS_AFTER_S,
    ASKS_EVERY_S,
    CHOOSE_EVERY_S,
    ConnectionLimits,
    Held,
    Phase,
)
from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.budgets import Budgets

MOST = 16
NUM_WAITING = 100


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Served(asyncio.Protocol):
    """What the limits and the acceptor need of a connection."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._held: Held | None = None
        self.phase = Phase.HEADER

    def count_as(self, held: Held) -> None:
        self._held = held

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        assert self._held is not None
        self._held.connection = self

    def connection_lost(self, _exc: Exception | None) -> None:
        assert self._held is not None
        self._limits.lost(self._held)

    def abort(self) -> None:
        self._transport.abort()

    expire = abort

    def unsent(self) -> int:
        return 0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def use() -> BudgetUse:
    return BudgetUse(Budgets(http_connections=MOST))


@pytest.fixture
def limits(use: BudgetUse, clock: Clock) -> ConnectionLimits:
    return ConnectionLimits(use, clock)


@pytest.fixture
def hold(limits: ConnectionLimits) -> Iterator[Any]:
    """Let a connection be accepted: `hold()` gives what is noted of it."""
    made: list[socket.socket] = []

    def accept() -> Held:
        made.append(socket.socket())
        return limits.accepted(made[-1], "10.0.0.1")

    yield accept
    for one in made:
        one.close()


def closed(limits: ConnectionLimits, among: dict[str, Held]) -> str:
    """Make room for one more; return which of them had to go."""
    assert not limits.make_room()
    (gone,) = (name for name, own in among.items() if own.closed_s is not None)
    limits.lost(among.pop(gone))
    assert limits.make_room()
    return gone


def test_who_is_idle_longest_by_what_is_expected_makes_room(
    limits: ConnectionLimits, clock: Clock, hold: Any
) -> None:
    """Who never asked soon, who asks now and then later, who waits for an answer last."""
    for own in [hold() for _ in range(MOST - 5)]:
        own.enter(Phase.STREAM, clock())
    held = {name: hold() for name in ("answering", "in use", "idle", "begun", "newest")}
    held["idle"].enter(Phase.IDLE, clock())
    clock.now_s += ASKS_EVERY_S
    held["answering"].enter(Phase.ANSWER, clock())
    held["in use"].enter(Phase.IDLE, clock() - ASKS_EVERY_S / 10)
    held["newest"].since_s = clock() - ASKS_AFTER_S / 4

    order = []
    for _ in range(4):
        order.append(closed(limits, held))
        hold().enter(Phase.STREAM, clock())
        clock.now_s += CHOOSE_EVERY_S
    assert order == ["begun", "idle", "newest", "in use"]
    assert list(held) == ["answering"]


def test_one_that_is_used_meanwhile_is_not_closed(
    limits: ConnectionLimits, clock: Clock, hold: Any
) -> None:
    """Although it was idle longest when that was looked for."""
    held = [hold() for _ in range(MOST)]
    clock.now_s += 10.0
    assert not limits.make_room()
    limits.lost(held[0])
    hold()
    held[1].enter(Phase.IDLE, clock())
    assert not limits.make_room()

    assert [own.closed_s is not None for own in held[:3]] == [True, False, True]


def test_it_waits_for_the_one_that_it_closed(
    limits: ConnectionLimits, use: BudgetUse, hold: Any
) -> None:
    """Also when it is asked again before that one is gone."""
    held = [hold() for _ in range(MOST)]
    assert [limits.make_room() for _ in range(3)] == [False] * 3

    assert [own.closed_s is not None for own in held].count(True) == 1
    assert use["http_connections"].num_evicted == 1
    assert use["http_connections"].used == MOST


def test_few_are_accepted_at_a_time(limits: ConnectionLimits) -> None:
    """While a hundred wait, what else there is to do gets its turn; all are accepted in the end."""
    limits.most = 2 * NUM_WAITING

    async def flood() -> tuple[list[int], float]:
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
            for _ in range(NUM_WAITING):
                stack.enter_context(socket.create_connection(listening.getsockname()))
            made: list[Served] = []

            def make() -> Any:
                made.append(Served(limits))
                return made[-1]

            began_s = loop.time()
            acceptor = Acceptor(listening, limits, make, None)
            turns = [0]
            while turns[-1] < NUM_WAITING:
                await asyncio.sleep(0)
                turns.append(len(made))
            took_s = loop.time() - began_s
            acceptor.close()
            await asyncio.sleep(SLICE_S)
            for own in made:
                own.abort()
            await asyncio.sleep(0.01)
        return turns, took_s

    turns, took_s = asyncio.run(flood())
    assert max(after - before for before, after in itertools.pairwise(turns)) <= ACCEPTS
    assert took_s > (NUM_WAITING / ACCEPTS - 2) * SLICE_S


def test_a_newcomer_is_let_in_when_all_are_taken(limits: ConnectionLimits, use: BudgetUse) -> None:
    """Twice as many as may be, one after the other: the first half is closed."""

    async def come() -> list[bool]:
        with contextlib.ExitStack() as stack:
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
            acceptor = Acceptor(listening, limits, lambda: Served(limits), None)  # type: ignore[arg-type, return-value]  # all that is needed
            came = []
            for _ in range(2 * MOST):
                reader, writer = await asyncio.open_connection(*listening.getsockname())
                came.append((reader, writer))
                await asyncio.sleep(2 * SLICE_S)
            ends = []
            for reader, writer in came:
                try:
                    async with asyncio.timeout(0.02):
                        ends.append(not await reader.read(1))
                except ConnectionError:
                    ends.append(True)
                except TimeoutError:
                    ends.append(False)
                writer.close()
            acceptor.close()
            await asyncio.sleep(0.05)
        return ends

    assert asyncio.run(come()) == [True] * MOST + [False] * MOST
    assert use["http_connections"].num_evicted == MOST
