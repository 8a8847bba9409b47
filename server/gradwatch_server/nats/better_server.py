"""Looks for a server that reaches more than the one that a client is connected to.

It is looked before anything is given up. So nobody leaves a server for one that is no better: not
where most of the servers are gone, and not where what is missing is gone itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from nats import errors as library
from nats.aio.client import Client

from gradwatch_server.nats.errors import reason
from gradwatch_server.nats.reach import Wanted, survey

logger = logging.getLogger(__name__)

TRY_S: Final = 3.0
"""How long a server may take to let a client in and to show what it reaches."""

Connect: TypeAlias = Callable[[Client, str], Awaitable[None]]
"""Connects a client to the server of an address, or to another one if it is not let in there."""


def is_better(missing: frozenset[str], here: frozenset[str], there: frozenset[str]) -> bool:
    """Tell whether a server reaches something of what is missing, and all that this one reaches.

    Args:
        missing: What was not reached for some time.
        here: What is reached just now.
        there: What the other server reaches at the same time.
    """
    return bool(missing & (there - here)) and here <= there


async def find_better(
    current: Client, urls: Sequence[str], connect: Connect, wanted: Wanted, missing: frozenset[str]
) -> Client | None:
    """Return a client of the first server found that is better, None if none is.

    Args:
        current: The client of now.
        urls: Addresses of the other servers.
        connect: Connects a client to one of them.
        wanted: What is to be reached.
        missing: What of it was not reached by the client of now.
    """
    here = asyncio.create_task(survey(current, wanted))

    async def look(url: str) -> Client | None:
        client, is_kept = Client(), False
        try:
            async with asyncio.timeout(TRY_S):
                await connect(client, url)
                at = client.connected_url
                if at is not None and at.netloc == netloc_of(url):
                    there = await survey(client, wanted)
                    is_kept = is_better(missing, await asyncio.shield(here), there)
        except (library.Error, OSError) as error:
            logger.debug("NATS: %s is no better: %s", url, reason(error))
        finally:
            if not is_kept:
                await client.close()
        return client if is_kept else None

    return await _first([asyncio.create_task(look(url)) for url in urls], here)


async def _first(
    looks: Sequence[asyncio.Task[Client | None]], here: asyncio.Task[frozenset[str]]
) -> Client | None:
    """Return what the first look finds; all others end."""
    found: Client | None = None
    try:
        for look in asyncio.as_completed(looks):
            found = await look
            if found is not None:
                return found
    finally:
        for task in (here, *looks):
            task.cancel()
        with suppress(library.Error):
            for client in await asyncio.gather(*looks, return_exceptions=True):
                if isinstance(client, Client) and client is not found:
                    await client.close()
    return None


def netloc_of(url: str) -> str:
    """Return host and port of the address of a server."""
    return url.partition("//")[2]
