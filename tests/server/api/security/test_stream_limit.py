"""Places among the streams, and the reader who loses his."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from gradwatch_server.api.security.stream_limit import StreamLimit
from gradwatch_server.budgets import Budgets, BudgetUse


def limit_of(connections: int, per_caller: int) -> Any:
    use = BudgetUse(Budgets(streams_per_caller=per_caller))
    return StreamLimit(use, connections), use


def test_one_caller_takes_no_place_of_another() -> None:
    """Beyond his share it is his own oldest stream that goes."""
    limit, use = limit_of(16, 2)
    other = limit.acquire("10.0.0.1")
    own = [limit.acquire("10.0.0.2") for _ in range(3)]

    assert [place.evicted for place in (other, *own)] == [False, True, False, False]
    assert use["streams_per_caller"].num_evicted == 1
    assert use["streams_per_caller"].used == 2


def test_when_all_are_taken_he_pays_who_has_most() -> None:
    limit, use = limit_of(8, 3)
    few = limit.acquire("10.0.0.1")
    many = [limit.acquire("10.0.0.2") for _ in range(3)]
    limit.acquire("10.0.0.3")

    assert [place.evicted for place in (few, *many)] == [False, True, False, False]
    assert use["http_connections"].num_evicted == 1


def test_a_place_is_given_back_once() -> None:
    limit, use = limit_of(16, 1)
    first, second = limit.acquire("a"), limit.acquire("a")
    limit.release(first)
    limit.release(second)
    limit.release(second)

    assert use["streams_per_caller"].used == 0


def test_streams_leave_half_of_the_connections_to_others() -> None:
    assert limit_of(64, 64)[0].most == 32
    assert limit_of(1, 64)[0].most == 1


def test_of_one_callers_streams_that_goes_which_nobody_reads() -> None:
    """S30: although it is the newest; what is not read is what the system still holds."""

    async def scenario() -> list[bool]:
        now_s = [0.0]
        use = BudgetUse(Budgets(streams_per_caller=3))
        limit = StreamLimit(use, clock_s=lambda: now_s[0])
        pairs = [await pair() for _ in range(3)]
        places = [limit.acquire("10.0.0.1", transport) for transport, _ in pairs]
        for _ in range(8):
            now_s[0] += 1.0
            for place, (transport, reader) in zip(places, pairs, strict=True):
                place.measure()
                transport.write(bytes(1 << 20))
                if place is not places[-1]:
                    await read(reader, 1 << 20)
        limit.acquire("10.0.0.1")
        for transport, reader in pairs:
            transport.abort()
            reader.close()
        return [place.evicted for place in places]

    assert asyncio.run(asyncio.wait_for(scenario(), 60)) == [False, False, True]


async def pair() -> tuple[asyncio.Transport, socket.socket]:
    """Connect two sockets: the end that sends, and the one that reads or does not."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        reader = socket.create_connection(server.getsockname())
        reader.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=server.accept()[0])
        return transport, reader


async def read(reader: socket.socket, num_bytes: int) -> None:
    while num_bytes:
        num_bytes -= len(await asyncio.get_running_loop().sock_recv(reader, num_bytes))
