"""The stream as one node reaches it, below the product's own adapter.

What retries an append, and finds out what became of it, is the real code; its library and its
connection are simulated: without an answer now and then, whatever became of the message.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast
from unittest import mock

from nats.aio.client import Client
from nats.js import api
from nats.js.errors import APIError, NotFoundError

from gradwatch_server.cluster.messages import inbox
from gradwatch_server.cluster.ownership import absences, lease, membership, renewals
from gradwatch_server.nats import appending
from gradwatch_server.nats.chain import Chain, sequence_of, stored_of, walk
from gradwatch_server.nats.connection import CALL_S, Connection
from gradwatch_server.nats.errors import WRONG_LAST_SEQUENCE, translated
from gradwatch_server.nats.jetstream import JetStreamStream
from gradwatch_server.nats.stream import Stored
from simulation.clock import Clock
from simulation.nodes.faults import NodeFaults
from simulation.nodes.stream import Proposed, ReplicatedStream, Written, WrongLastSequence
from simulation.nodes.task import Task
from simulation.nodes.waiter import Waiter

T = TypeVar("T")

LATE_S: Final = 8.0
"""The longest time that a message is on its way."""


class _Sleep:
    """What a coroutine awaits to let time pass."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __await__(self) -> Generator[_Sleep, None, None]:
        yield self


async def sleep(seconds: float) -> None:
    """Let simulated time pass."""
    await _Sleep(seconds)


@contextmanager
def simulated_time(clock: Clock) -> Iterator[None]:
    """Give the adapter the simulation's time in place of that of an asyncio loop."""
    loop = SimpleNamespace(time=lambda: clock.now_s)
    stand_in = SimpleNamespace(sleep=sleep, get_running_loop=lambda: loop, timeout=nullcontext)
    steady = SimpleNamespace(monotonic=lambda: clock.now_s, sleep=Task.sleep)
    with (
        mock.patch.object(appending, "asyncio", stand_in),
        mock.patch.object(membership, "time", steady),
        mock.patch.object(lease, "time", steady),
        mock.patch.object(absences, "time", steady),
        mock.patch.object(renewals, "time", steady),
        mock.patch.object(inbox, "time", steady),
    ):
        yield


class SimulatedConnection:
    """Takes the place of `Connection`: a call is done in the thread that makes it."""

    def __init__(self, client: SimulatedClient, waiter: Waiter) -> None:
        self._client = client
        self._waiter = waiter

    def call(
        self,
        run: Callable[[Client], Coroutine[Any, Any, T]],
        what: str,
        patience_s: float = CALL_S,  # noqa: ARG002 - whoever waits has an end of his own
    ) -> T:
        """Do what is asked for."""
        with translated(what):
            coroutine = run(cast("Client", self._client))
            try:
                while True:
                    self._waiter.pass_by(coroutine.send(None).seconds)
            except StopIteration as done:
                return cast("T", done.value)
            finally:
                coroutine.close()


class SimulatedClient:
    """Takes the place of the library's client, as far as a stream needs it."""

    def __init__(
        self,
        stream: ReplicatedStream,
        node: int,
        writer: str,
        faults: NodeFaults,
        clock: Clock,
        waiter: Waiter,
    ) -> None:
        self._stream = stream
        self._node = node
        self._writer = writer
        self._faults = faults
        self._clock = clock
        self._waiter = waiter

    @property
    def is_closed(self) -> bool:
        """Whether another client took its place: a simulated node has one for all servers."""
        return False

    @property
    def is_connected(self) -> bool:
        """Whether the servers are reached."""
        return self._faults.reaches_nats(self._node)

    def jetstream(self, timeout: float = CALL_S) -> SimulatedClient:  # noqa: ARG002 - drawn
        """Return what speaks to JetStream."""
        return self

    async def publish(
        self,
        subject: str,
        payload: bytes,
        timeout: float,  # noqa: ASYNC109 - the library's name
        headers: Mapping[str, str],
    ) -> api.PubAck:
        """Append a message."""
        message = Proposed(subject, payload, headers, self._writer)
        faults = self._faults
        self._waiter.point("before an append")
        if not faults.has_leader:
            await self._get_no_answer(message, timeout, ("is lost", "comes late"))
        if faults.chance(faults.scenario.unanswered):
            ways = ("is lost", "comes late", "is written", "is taken")
            await self._get_no_answer(message, timeout, ways)
        try:
            sequence = self._stream.write(message)
        except WrongLastSequence:
            raise APIError(400, "wrong last sequence", WRONG_LAST_SEQUENCE) from None
        self._waiter.point("after an append")
        return api.PubAck(stream="", seq=sequence)

    async def _get_no_answer(self, message: Proposed, most_s: float, ways: Sequence[str]) -> None:
        way = self._faults.random.choice(ways)
        self._faults.note("an append to", message.subject, "gets no answer:", way)
        try:
            if way == "is written":
                self._stream.write(message)
            elif way == "is taken":
                self._stream.take(message)
            elif way == "comes late":
                late_s = self._faults.random.random() * LATE_S
                self._stream.send_late(message, self._clock.now_s + late_s)
        except WrongLastSequence:
            pass  # nobody hears of it
        self._waiter.point("no answer to an append")
        await sleep(self._faults.random.random() * most_s)
        raise TimeoutError

    async def get_msg(
        self,
        stream: str,  # noqa: ARG002 - there is one
        seq: int | None = None,
        subject: str | None = None,
        *,
        next: bool = False,  # noqa: A002 - the library's name
    ) -> api.RawStreamMsg:
        """Return a message as the leader has it."""
        if not self._faults.has_leader:
            raise TimeoutError
        if subject is not None and next:
            found = self._stream.following(subject, seq or 0)
        else:
            found = self._stream.get(seq if seq is not None else self._stream.last(subject or ""))
        if found is None:
            raise NotFoundError(404, "no message found", 10037)
        return _raw(found)

    async def request(
        self,
        subject: str,  # noqa: ARG002 - it is asked for a message only
        payload: bytes,
        timeout: float,  # noqa: ARG002, ASYNC109 - the library's name
    ) -> Any:
        """Return, as the server says it, the first message of a subject from a sequence on."""
        if not self._faults.has_leader:
            raise TimeoutError
        wanted = json.loads(payload)
        found = self._stream.following(wanted["next_by_subj"], wanted["seq"])
        if found is None:
            says = {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}
        else:
            says = {"message": {"seq": found.sequence}}
        return SimpleNamespace(data=json.dumps(says).encode())

    async def delete_msg(self, stream: str, seq: int) -> bool:  # noqa: ARG002 - there is one
        """Delete a message."""
        if not self._faults.has_leader:
            raise TimeoutError
        return self._stream.delete(seq)

    async def stream_info(self, stream: str) -> Any:  # noqa: ARG002 - there is one
        """Return the size of the stream."""
        return SimpleNamespace(state=SimpleNamespace(bytes=self._stream.used_bytes()))


class SimulatedStream(JetStreamStream):
    """The real one, but for how pages of many messages are fetched."""

    def __init__(self, client: SimulatedClient, waiter: Waiter) -> None:
        connection = cast("Connection", SimulatedConnection(client, waiter))
        super().__init__(connection, "simulated")

    def read(self, subject: str, after: int = 0, *, headers_only: bool = False) -> Iterator[Stored]:
        """Yield the messages of a subject after one of them, as many as there are."""

        async def run(client: Client) -> list[Stored]:
            chain, found = Chain(), []
            async for message in walk(client, "", subject, after):
                if chain.take(sequence_of(message), message.headers):
                    own = stored_of(message)
                    found.append(replace(own, payload=b"") if headers_only else own)
            return [own for own in found if own.sequence > after]

        yield from self._connection.call(run, f"the messages of {subject}")


def _raw(written: Written) -> api.RawStreamMsg:
    message = written.message
    return api.RawStreamMsg(
        subject=message.subject,
        seq=written.sequence,
        data=message.payload,
        headers=dict(message.headers),
    )
