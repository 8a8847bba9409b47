"""Very many clients, and very many broken ones: the aggregator goes on, in bounded memory."""

from __future__ import annotations

import random
import resource
import signal
from collections.abc import Iterator

import psutil
import pytest
import zmq

from gradwatch_wire import Ack, Envelope, Hello, Record, Welcome, encode
from tests.support.aggregator import Aggregator
from tests.support.job import Train
from tests.support.peer import Context, Peer
from tests.support.records import manifest_of, stats_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

CLIENTS = 1_000
FRAMES = 100_000
A_PEER = 50
"""Messages of each peer: fewer than what makes the aggregator stop reading from it."""

WORDS = (b"\xc1", b"\xff" * 4, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x00", b"")


@pytest.fixture
def is_forked() -> bool:
    """The memory of a fork grows with each page that it shared before."""
    return False


@pytest.fixture
def context() -> Iterator[Context]:
    """A context with room for a socket per client; files for them are allowed for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8 * CLIENTS), hard))
    made: Context = zmq.Context()
    made.set(zmq.MAX_SOCKETS, 2 * CLIENTS)
    yield made
    made.destroy(linger=0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def records(step: int) -> list[Record]:
    stats = stats_of(step, [1.0])
    return [stats] if step else [manifest_of(["w"]), stats]


class Client(Peer):
    """A rank that notes what is acknowledged, and waits for nothing."""

    acked_seq = 0

    def is_stored(self) -> bool:
        """Listen; tell whether all it sent is acknowledged by now."""
        for answer in self.received():
            assert isinstance(answer, (Welcome, Ack)), answer
            self.acked_seq = max(self.acked_seq, answer.acked)
        return self.acked_seq == self.seq


@pytest.mark.exhaustive
def test_a_thousand_clients_connect_at_once_and_again_after_a_restart(
    aggregator: Aggregator, context: Context
) -> None:
    aggregator.start()
    clients = [
        Client(aggregator.ingest, run="crowd", context=context, rank=rank, world=CLIENTS)
        for rank in range(CLIENTS)
    ]
    for step in (0, 1):
        for client in clients:
            client.send_as(0, 0, client.greeting)
        for client in clients:
            client.greet()
        for client in clients:
            for record in records(step):
                client.send(record)
        wait_until(lambda: all(client.is_stored() for client in clients), "all is stored")
        if not step:
            aggregator.stop(signal.SIGKILL)
            aggregator.start()

    for client in clients:
        client.close()
    wait_until(lambda: aggregator.health("crowd")["step"] == 1, "the frame of all ranks")
    health = aggregator.health("crowd")
    assert health["records"]["stored"] == 3 * CLIENTS
    assert health["records"]["lost"] == 0
    assert health["window"]["coverage"] == 1.0


def mutated(message: bytes, chance: random.Random) -> bytes:
    """Return a message with some bytes changed, cut, doubled or put in."""
    data = bytearray(message)
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
    return bytes(data)


@pytest.mark.exhaustive
def test_a_hundred_thousand_broken_messages_harm_nobody(
    aggregator: Aggregator, context: Context, train: Train
) -> None:
    """The process lives, its memory is bounded, and a real training run is served beside them."""
    aggregator.start()
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
            socket.send(mutated(chance.choice(valid), chance))
        socket.close()
    train(1, "--run", "honest", "--steps", "20").wait()

    assert aggregator.health_of_ended("honest")["records"]["stored"] == 22
    assert aggregator.get("/readyz").is_success
    assert process.memory_info().rss - half < 64 << 20
