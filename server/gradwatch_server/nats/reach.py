"""What a client reaches through the server that it is connected to: those who beat, and leaders.

The servers of a NATS cluster pass a message on once. So what is at a server that the own one does
not reach cannot be reached, though both of them reach a third one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from nats import errors as library
from nats.aio.client import Client
from nats.aio.msg import Msg

BEAT_S: Final = 0.5
"""How often who is to be heard beats."""

LISTEN_S: Final = 1.2
"""How long it is listened to beats: two of them and some delay."""

ASK_S: Final = 0.6
"""How long the leader of a stream has to answer, or a server to say its name."""

HAND_OVER_S: Final = 2.0
"""How long a leader has to hand over: it takes no messages for a quarter of a second before."""

SILENT_NS: Final = 3_100_000_000
"""A copy that its leader did not hear of for so long is silent: each answers once a second.

No less: a leader hands over to anybody whom it heard of within 3 s.
"""


@dataclass(frozen=True, slots=True)
class Leader:
    """What the leader of a stream says.

    Args:
        name: Of its server.
        silent: Names of the servers with a copy that it does not hear.
    """

    name: str
    silent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be reached.

    Args:
        beats: Subject that one beats under whose last token is its name, with `*` in its place.
        streams: Names of streams.
    """

    beats: str
    streams: tuple[str, ...]


def beat_of(node: str) -> str:
    """Return what a node is called that is reached."""
    return f"node {node}"


def leader_of(stream: str) -> str:
    """Return what the leader of a stream is called that is reached."""
    return f"leader of {stream}"


async def survey(client: Client, wanted: Wanted) -> frozenset[str]:
    """Return what a client reaches, as `beat_of` and `leader_of` say."""
    heard: set[str] = set()

    async def hear(message: Msg) -> None:
        heard.add(beat_of(message.subject.rpartition(".")[2]))

    subscription = await client.subscribe(wanted.beats, cb=hear)
    leaders, _ = await asyncio.gather(ask_leaders(client, wanted.streams), asyncio.sleep(LISTEN_S))
    with suppress(library.Error):
        await subscription.unsubscribe()
    return frozenset(heard | {leader_of(stream) for stream in leaders})


async def ask_leaders(client: Client, streams: Sequence[str]) -> dict[str, Leader]:
    """Return what the leader of each stream says, without those that do not answer."""
    found = await asyncio.gather(*(_ask_leader(client, stream) for stream in streams))
    return {stream: own for stream, own in zip(streams, found, strict=True) if own is not None}


async def _ask_leader(client: Client, stream: str) -> Leader | None:
    try:
        told = (await client.jetstream(timeout=ASK_S).stream_info(stream)).cluster
    except (library.Error, OSError, TimeoutError):
        return None
    if told is None:  # a server alone
        return Leader("")
    if not told.leader:  # one with a copy says that there is none
        return None
    replicas = told.replicas or []
    silent = {own.name or "" for own in replicas if (own.active or 0) > SILENT_NS}
    return Leader(told.leader, frozenset(silent))


async def find_alive(client: Client, names: frozenset[str]) -> frozenset[str]:
    """Return those of the servers of some names that answer, of all that a client knows."""
    asked = [
        asyncio.create_task(_name_of(own.hostname or "", own.port or 4222))
        for own in client.servers
    ]
    found: set[str] = set()
    try:
        for each in asyncio.as_completed(asked):
            found |= names & {await each}
            if found == names:
                break
    finally:
        for task in asked:
            task.cancel()
    return frozenset(found)


async def _name_of(host: str, port: int) -> str:
    """Return what a server calls itself in the first line that it sends to anybody."""
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                line = await reader.readline()
            finally:
                writer.close()
        return str(json.loads(line.removeprefix(b"INFO "))["server_name"])
    except (OSError, TimeoutError, ValueError, KeyError, TypeError):
        return ""


async def hand_over(client: Client, leaders: Mapping[str, Leader]) -> frozenset[str]:
    """Have leaders let one lead that follows them; return the streams whose leaders were asked.

    One is not asked if another one leads by now: the request goes to whoever does.
    """
    asked = await asyncio.gather(*(_hand_over(client, *own) for own in leaders.items()))
    return frozenset(stream for stream, is_asked in zip(leaders, asked, strict=True) if is_asked)


async def _hand_over(client: Client, stream: str, leader: Leader) -> bool:
    now = await _ask_leader(client, stream)
    if now is None or now.name != leader.name or not now.silent:
        return False
    with suppress(library.Error, OSError, TimeoutError):  # the answer may be lost in the change
        subject = f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}"
        await client.request(subject, timeout=HAND_OVER_S)
    return True
