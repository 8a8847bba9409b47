"""Very many clients, and very many broken ones: the aggregator goes on, in bounded memory."""

from __future__ import annotations

import random
import resource
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import zmq

from gradwatch_wire import (
    Ack,
    Column,
    Envelope,
    Hello,
    Manifest,
    Record,
    Stats,
    Welcome,
    decode,
    encode,
)

CLIENTS = 1_000
FRAMES = 100_000
A_PEER = 50
"""Messages of each peer: fewer than what makes the aggregator stop reading from it."""

WORDS = (b"\xc1", b"\xff" * 4, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x00", b"")


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """A context with room for a socket per client; files for them are allowed for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8 * CLIENTS), hard))
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made.set(zmq.MAX_SOCKETS, 2 * CLIENTS)
    yield made
    made.destroy(linger=0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def records(step: int) -> list[Record]:
    """What a client has to say in one step; its layers before the first."""
    stats = Stats(manifest_id=1, step=step, columns={"l2": Column.pack("<f8", [1.0])})
    if step:
        return [stats]
    numel = Column.pack("<u8", [4])
    return [Manifest(manifest_id=1, names=("w",), numel=numel, dtypes=("float32",)), stats]


class Client:
    """One rank by hand: greets, sends, and counts what is acknowledged."""

    def __init__(self, context: Any, endpoint: str, rank: int) -> None:
        self.session = rank.to_bytes(16, "big")
        self.rank, self.acked, self.welcomes = rank, 0, 0
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint)

    def say(self, record: Record, seq: int = 0) -> None:
        envelope = Envelope(session=self.session, seq=seq, low=min(seq, 1), record=record)
        self.socket.send_multipart(encode(envelope))

    def greet(self) -> None:
        self.say(Hello(run="crowd", rank=self.rank, world=CLIENTS))

    def hear(self) -> None:
        while self.socket.poll(0):
            answer = decode(self.socket.recv_multipart()).record
            self.welcomes += isinstance(answer, Welcome)
            if isinstance(answer, (Welcome, Ack)):
                self.acked = max(self.acked, answer.acked)


def hear_all(clients: list[Client], wait_until: Any, done: Any, what: str) -> None:
    def all_done() -> bool:
        for client in clients:
            client.hear()
        return all(map(done, clients))

    wait_until(all_done, what, 60)


def test_a_thousand_clients_connect_at_once_and_again_after_a_restart(
    aggregator: Any, context: Any, wait_until: Any
) -> None:
    """All are welcomed, all that they send is stored, once."""
    aggregator.start()
    clients = [Client(context, aggregator.ingest, rank) for rank in range(CLIENTS)]
    for step, last in ((0, 2), (1, 3)):
        for client in clients:
            client.greet()
        hear_all(clients, wait_until, lambda c, step=step: c.welcomes > step, "all are welcomed")
        for client in clients:
            for seq, record in enumerate(records(step), last - len(records(step)) + 1):
                client.say(record, seq)
        hear_all(clients, wait_until, lambda c, last=last: c.acked == last, "all is stored")
        if not step:
            aggregator.stop(signal.SIGKILL)
            aggregator.start()

    for client in clients:
        client.socket.close()
    health = aggregator.health("crowd")
    assert health["records"]["stored"] == 3 * CLIENTS
    assert health["records"]["lost"] == 0
    wait_until(lambda: aggregator.health("crowd")["step"] == 1, "the frame of all ranks")
    assert aggregator.health("crowd")["window"]["coverage"] == 1.0


def mutated(frames: list[bytes], chance: random.Random) -> list[bytes]:
    """A message with some bytes changed, cut, doubled or put in."""
    frames = list(frames)
    index = chance.randrange(len(frames))
    data = bytearray(frames[index])
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(data) + 1)
        how = chance.randrange(4)
        if how == 0 and place < len(data):
            data[place] ^= 1 << chance.randrange(8)
        elif how == 1:
            del data[place:]
        elif how == 2:
            data[place:place] = chance.choice(WORDS)
        else:
            data += data[place : place + 64]
    frames[index] = bytes(data)
    return frames if chance.random() < 0.9 else frames * chance.randint(0, 3) or [b""]


def test_a_hundred_thousand_broken_messages_harm_nobody(
    aggregator: Any, context: Any, train: Any
) -> None:
    """The process lives, its memory is bounded, and a real training run is served beside them."""
    aggregator.start()
    assert aggregator.process is not None
    process = psutil.Process(aggregator.process.pid)
    chance = random.Random(7)
    valid = [
        encode(Envelope(session=bytes(16), seq=seq, low=1, record=record))
        for seq, record in enumerate([*records(0), *records(1)], 1)
    ]
    valid.append(encode(Envelope(session=bytes(16), record=Hello(run="broken", rank=0, world=1))))
    half = 0
    for peer in range(FRAMES // A_PEER):
        if peer == FRAMES // A_PEER // 2:
            half = process.memory_info().rss  # by now each buffer has been as large as it gets
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 2_000)
        socket.connect(aggregator.ingest)
        for _ in range(A_PEER):
            socket.send_multipart(mutated(chance.choice(valid), chance))
        socket.close()
    train(1, "--run", "honest", "--steps", "20").wait()

    assert aggregator.health("honest")["records"]["stored"] == 22
    assert aggregator.get("/readyz").is_success
    assert process.memory_info().rss - half < 64 << 20
