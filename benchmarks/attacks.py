"""What one greedy, wide, broken or hostile peer can do to an aggregator: one function each.

Each works until it is told to stop, and returns what was refused to it. Rates are those at which
one process can keep it up, or below.
"""

from __future__ import annotations

import http.client
import os
import resource
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import zmq

from benchmarks.harness import Pipe
from gradwatch_wire import (
    Bye,
    Column,
    Envelope,
    Hello,
    Manifest,
    ProtocolError,
    Record,
    Refuse,
    Stats,
    decode,
    encode,
)
from tests.support.records import manifest_of

NICENESS: Final = 10
"""The attacker yields the processor: what is measured is the aggregator, not the scheduler."""

MAX_RANKS: Final = 65_536


@dataclass(frozen=True, slots=True)
class Target:
    """Where the aggregator is, and which attack to run against it."""

    endpoint: str
    url: str
    attack: str

    @property
    def http(self) -> tuple[str, int]:
        """Host and port of HTTP."""
        return _host_and_port(self.url)

    @property
    def ingest(self) -> tuple[str, int]:
        """Host and port of the ingest socket."""
        return _host_and_port(self.endpoint)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.partition("://")[2].rpartition(":")
    return host, int(port)


Stop: TypeAlias = Callable[[], bool]
Refused: TypeAlias = Counter[str]


def attack(target: Target, pipe: Pipe) -> None:
    """Run one attack from one message of the parent to the next; tell it what was refused."""
    os.nice(NICENESS)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    refused: Refused = Counter()
    pipe.send("ready")
    pipe.recv()
    ATTACKS[target.attack](target, pipe.poll, refused)
    pipe.send(refused)


# Over the ingest port


@dataclass(slots=True)
class Session:
    """A session of a peer that never waits for answers."""

    hello: Hello
    id: bytes = field(default_factory=lambda: os.urandom(16))
    seq: int = 0

    def greeting(self) -> list[bytes]:
        """Return its HELLO."""
        return encode(Envelope(session=self.id, record=self.hello))

    def next(self, record: Record) -> list[bytes]:
        """Return the next record in sequence."""
        self.seq += 1
        return encode(Envelope(session=self.id, seq=self.seq, low=1, record=record))


class Line:
    """A connection to the ingest port, and what was refused over it."""

    def __init__(self, target: Target, refused: Refused) -> None:
        self._refused = refused
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(target.endpoint)

    def send(self, frames: list[bytes], stop: Stop) -> None:
        """Send as soon as the connection takes it, and take in the answers meanwhile."""
        while not stop():
            self._listen()
            try:
                self._socket.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                self._socket.poll(20, zmq.POLLOUT)
            else:
                return

    def _listen(self) -> None:
        with suppress(zmq.Again):
            while True:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
                with suppress(ProtocolError):
                    self._refused["REFUSE"] += isinstance(decode(frames).record, Refuse)

    def close(self) -> None:
        """Count the last answers, and let the connection go."""
        self._socket.poll(200)
        self._listen()
        self._context.destroy(linger=0)


def _paced(rate: float, stop: Stop) -> Iterator[int]:
    """Count from 0 at a rate, or slower if the caller is, until it is to stop."""
    number, due_s = 0, time.monotonic()
    while not stop():
        yield number
        number += 1
        due_s = max(due_s + 1.0 / rate, time.monotonic() - 1.0)
        time.sleep(max(0.0, due_s - time.monotonic()))


def names(target: Target, stop: Stop, refused: Refused) -> None:
    """HELLO under ever new run names, 500/s."""
    line = Line(target, refused)
    for number in _paced(500, stop):
        line.send(Session(Hello(run=f"sweep-{number}", rank=0, world=1)).greeting(), stop)
    line.close()


def sessions(target: Target, stop: Stop, refused: Refused) -> None:
    """A HELLO of 7.4 kB for each rank of one wide run, 1,000/s."""
    line = Line(target, refused)
    versions = {f"part{number}": "x" * 230 for number in range(31)}
    for number in _paced(1_000, stop):
        rank = number % MAX_RANKS
        hello = Hello(run="crowded", rank=rank, world=MAX_RANKS, versions=versions, job="one")
        line.send(Session(hello).greeting(), stop)
    line.close()


def wide(target: Target, stop: Stop, refused: Refused) -> None:
    """20 runs with a world of 65,536 of which one rank sends, 390 records/s."""
    line = Line(target, refused)
    ranks = [Session(Hello(run=f"wide-{n}", rank=5, world=MAX_RANKS)) for n in range(20)]
    _open(line, ranks, manifest_of(["layer"]), stop)
    for number in _paced(390, stop):
        stats = _stats(number // len(ranks), {"l2": [1.0]})
        line.send(ranks[number % len(ranks)].next(stats), stop)
    line.close()


def _open(line: Line, ranks: Sequence[Session], manifest: Manifest, stop: Stop) -> None:
    for rank in ranks:
        line.send(rank.greeting(), stop)
        line.send(rank.next(manifest), stop)


def _stats(step: int, columns: Mapping[str, Sequence[float]]) -> Stats:
    packed = {name: Column.pack("<f8", values) for name, values in columns.items()}
    return Stats(manifest_id=1, step=step, columns=packed)


def manifests(target: Target, stop: Stop, refused: Refused) -> None:
    """A new manifest of 1.9 MB, 2.5 times a second."""
    line = Line(target, refused)
    layers = 4_000
    groups = {f"group{number}": (*range(layers),) * 5 for number in range(32)}
    manifest = manifest_of([f"layer{number}" for number in range(layers)], groups=groups)
    rank = Session(Hello(run="redeclares", rank=0, world=1))
    line.send(rank.greeting(), stop)
    for number in _paced(2.5, stop):
        line.send(rank.next(replace(manifest, manifest_id=number + 1)), stop)
    line.close()


def descending(target: Target, stop: Stop, refused: Refused) -> None:
    """Records of 1 MB whose steps go down, of one of two ranks, 20/s: their frames all wait."""
    line = Line(target, refused)
    layers = 16_000
    ranks = [Session(Hello(run="descends", rank=rank, world=2)) for rank in range(2)]
    _open(line, ranks, manifest_of([f"layer{number}" for number in range(layers)]), stop)
    columns = ("l2", "l1", "linf", "zeros", "nans", "infs", "l2_max", "l2_mean")
    stats = _stats(0, dict.fromkeys(columns, [1.0] * layers))
    for number in _paced(20, stop):
        line.send(ranks[0].next(replace(stats, step=1_000_000 - number)), stop)
    line.close()


def flapping(target: Target, stop: Stop, refused: Refused) -> None:
    """300 layers with long names that turn bad and good again every 6 steps, 100 records/s."""
    line = Line(target, refused)
    layers = 300
    groups = {"\x02" * 400 + f"{n}": tuple(range(n * 5, n * 5 + 5)) for n in range(60)}
    _flap(line, ["\x01" * 500 + f"{n}" for n in range(layers)], groups, stop)
    line.close()


def _flap(
    line: Line, layers: Sequence[str], groups: Mapping[str, tuple[int, ...]], stop: Stop
) -> None:
    rank = Session(Hello(run="flaps", rank=0, world=1))
    _open(line, [rank], manifest_of(layers, groups=groups), stop)
    good, bad = [1.0] * len(layers), [float("nan")] * len(layers)
    for number in _paced(100, stop):
        line.send(rank.next(_stats(number, {"l2": bad if number // 6 % 2 else good})), stop)


def crash_loop(target: Target, stop: Stop, refused: Refused) -> None:
    """A job that says HELLO, ends with an exception and begins anew, 200 times a second."""
    line = Line(target, refused)
    for number in _paced(200, stop):
        rank = Session(Hello(run="crashes", rank=0, world=1, job=f"launch{number}"))
        line.send(rank.greeting(), stop)
        line.send(rank.next(Bye(reason="exception")), stop)
    line.close()


# Over plain sockets


def idle_http(target: Target, stop: Stop, refused: Refused) -> None:
    """1,500 HTTP connections that never end their first line; one that is closed is replaced."""
    _hold(target.http, b"GET / HT", 1_500, stop, refused)


def idle_ingest(target: Target, stop: Stop, refused: Refused) -> None:
    """1,500 connections to the ingest port that say nothing, each replaced when closed."""
    _hold(target.ingest, b"", 1_500, stop, refused)


def _hold(address: tuple[str, int], first: bytes, most: int, stop: Stop, refused: Refused) -> None:
    held: set[socket.socket] = set()
    for _ in _paced(200, stop):
        for one in _closed(held):
            held.discard(one)
            one.close()
            refused["connections closed"] += 1
        try:
            for _ in range(min(50, most - len(held))):
                held.add(_connect(address, first))
        except OSError:
            refused["connections not taken"] += 1
    for one in held:
        one.close()


def _connect(address: tuple[str, int], first: bytes) -> socket.socket:
    made = socket.create_connection(address, timeout=1.0)
    made.setblocking(False)
    made.sendall(first)
    return made


def _closed(held: set[socket.socket]) -> list[socket.socket]:
    """Return those that the other side closed; whatever else it says is thrown away."""
    found = []
    poller = select.poll()
    by_number = {one.fileno(): one for one in held}
    for number in by_number:
        poller.register(number, select.POLLIN)
    for number, _ in poller.poll(0):
        try:
            data = by_number[number].recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            found.append(by_number[number])
    return found


def deaf_readers(target: Target, stop: Stop, refused: Refused) -> None:
    """500 alert streams of which 150 are never read, while alerts come and go."""
    request = b"GET /alerts/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    deaf, heard = [], set()
    with suppress(OSError):
        for number in range(500):
            reader = _connect(target.http, request)
            deaf.append(reader) if number < 150 else heard.add(reader)

    def stop_reading() -> bool:
        for one in _closed(heard):
            heard.discard(one)
            one.close()
            refused["streams closed"] += 1
        return stop()

    line = Line(target, refused)
    _flap(line, [f"layer{number}" for number in range(40)], {}, stop_reading)
    line.close()
    for one in (*deaf, *heard):
        one.close()


def list_loops(target: Target, stop: Stop, refused: Refused) -> None:
    """900 runs, and then `/runs` and `/metrics` asked for in turn without a pause."""
    line = Line(target, refused)
    for number in range(900):
        line.send(Session(Hello(run=f"listed-{number}", rank=0, world=1)).greeting(), stop)
    line.close()
    connection = http.client.HTTPConnection(*target.http, timeout=30)
    while not stop():
        for path in ("/runs", "/metrics"):
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                response.read()
            except (OSError, http.client.HTTPException):
                refused["requests dropped"] += 1
                connection.close()
            else:
                refused[f"HTTP {response.status}"] += response.status >= 400
    connection.close()


def garbage_http(target: Target, stop: Stop, refused: Refused) -> None:
    """Requests that are none, each over a connection of its own, 200/s."""
    for _ in _paced(200, stop):
        try:
            with socket.create_connection(target.http, timeout=5.0) as one:
                one.sendall(b"\x00garbage\r\n\r\n")
                answer = one.recv(1 << 12)
        except OSError:
            refused["connections closed"] += 1
        else:
            refused[f"HTTP {answer[9:12].decode('ascii', 'replace')}"] += bool(answer)


ATTACKS: Final[dict[str, Callable[[Target, Stop, Refused], None]]] = {
    "run names": names,
    "sessions": sessions,
    "wide runs": wide,
    "manifests": manifests,
    "descending steps": descending,
    "flapping alerts": flapping,
    "crash loop": crash_loop,
    "idle HTTP": idle_http,
    "idle ingest": idle_ingest,
    "deaf readers": deaf_readers,
    "list loops": list_loops,
    "garbage HTTP": garbage_http,
}
