"""HTTP connections over real sockets."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gradwatch_server.api.connection_limits import BURST, MAX_DELAY_S, TURN_S, ConnectionLimits
from gradwatch_server.api.connections import HttpConnection
from gradwatch_server.budgets import BudgetUse


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """Answer nothing: nothing is asked."""


def test_each_connection_sends_at_once() -> None:
    """S50: on a socket as the service binds it; else the second write waits 40 ms for the first."""

    async def no_delay() -> int:
        config = uvicorn.Config(_app, log_config=None)
        config.load()
        loop = asyncio.get_running_loop()
        served: asyncio.Future[socket.socket] = loop.create_future()
        ended: asyncio.Future[None] = loop.create_future()

        class Watched(HttpConnection):
            limits = ConnectionLimits(BudgetUse())

            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                served.set_result(transport.get_extra_info("socket"))

            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                ended.set_result(None)

        bound = socket.create_server(("127.0.0.1", 0))
        async with await loop.create_server(lambda: Watched(config, ServerState(), {}), sock=bound):
            _, writer = await asyncio.open_connection(*bound.getsockname())
            option = (await served).getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.close()
            await writer.wait_closed()
            await ended
        return int(option)

    assert asyncio.run(no_delay()) != 0


def test_new_connections_of_a_caller_take_turns() -> None:
    """Others are read at once, and nobody waits longer than `MAX_DELAY_S`."""
    limits = ConnectionLimits(BudgetUse())
    assert max(limits.delay_s("many", 100.0) for _ in range(BURST + 1)) == pytest.approx(0.0)
    delays = [limits.delay_s("many", 100.0) for _ in range(2_000)]
    assert delays[:3] == pytest.approx([TURN_S, 2 * TURN_S, 3 * TURN_S])
    assert max(delays) == MAX_DELAY_S
    assert limits.delay_s("one", 100.0) == 0.0
    assert limits.delay_s("many", 110.0) == 0.0


def test_a_request_in_pieces_is_answered_when_its_turn_has_come() -> None:
    """Also where the connection before took the turn, and one that was closed is gone at once."""

    async def answer() -> tuple[bytes, int]:
        limits = ConnectionLimits(BudgetUse())
        for _ in range(BURST + 50):
            limits.delay_s("127.0.0.1", asyncio.get_running_loop().time())
        config = uvicorn.Config(_teapot, log_config=None)
        config.load()
        state, bound = ServerState(), socket.create_server(("127.0.0.1", 0))
        made = HttpConnection.under(limits)
        async with await asyncio.get_running_loop().create_server(
            lambda: made(config, state, {}), sock=bound
        ):
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            _, other = await asyncio.open_connection(*bound.getsockname())
            other.write(b"GET / HTTP/1.1\r\n")
            other.close()
            for piece in (b"GET / HT", b"TP/1.1\r\nHost: a\r\n", b"\r\n"):
                writer.write(piece)
                await asyncio.sleep(0.01)
            num_open = len(state.connections)
            line = await reader.readline()
            writer.close()
        return line, num_open

    assert asyncio.run(answer()) == (b"HTTP/1.1 418 I'm a Teapot\r\n", 1)


async def _teapot(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once."""
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b""})
