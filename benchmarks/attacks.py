"""What one greedy, wide, broken or hostile peer can do to an aggregator: one function each.

Each works until it is told to stop, and counts what was refused to it. Rates are those at which
one process can keep it up, or below. The last two are no attacks: what many do who mean well.
"""

from __future__ import annotations

import http.client
import os
import random
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

from benchmarks import alert_readers
from benchmarks.alert_readers import AlertReaders
from benchmarks.harness import Pipe
from benchmarks.senders import LAYERS, WINDOW, healthy_columns
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
FLAP_STEPS: Final = 12
CAPACITY_S: Final = 3.0
"""How long it is measured how much the aggregator can take."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the aggregator is, and which attack to run against it."""

    endpoint: str
    url: str
    attack: str
    rate: float = 0.0  # records/s that it can take, where that was measured before

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


@dataclass(slots=True)
class Outcome:
    """What became of an attack."""

    refused: Refused = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)  # what was measured beside the times
    wrongs: list[str] = field(default_factory=list)  # what happened to those who mean well


def attack(target: Target, pipe: Pipe) -> None:
    """Run one attack from one message of the parent to the next; tell it what came of it."""
    if target.attack not in WELL_MEANT:
        os.nice(NICENESS)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if target.attack in MEASURED:
        target = replace(target, rate=find_capacity(target))
    outcome = Outcome()
    pipe.send("ready")
    pipe.recv()
    told = ATTACKS[target.attack](target, pipe.poll, outcome.refused)
    if told is not None:
        outcome.notes += told.notes
        outcome.wrongs += told.wrongs
    pipe.send(outcome)


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
        self.acked = 0
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
                    record = decode(frames).record
                    self._refused["REFUSE"] += isinstance(record, Refuse)
                    self.acked = max(self.acked, getattr(record, "acked", 0))

    def wait(self, timeout_ms: int) -> None:
        """Take in answers, once there are some."""
        self._socket.poll(timeout_ms)
        self._listen()

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


# What many do who mean well


def half_of_capacity(target: Target, stop: Stop, refused: Refused) -> Outcome:
    """A run of 300 layers at half of the rate that the aggregator took at most before."""
    line = Line(target, refused)
    rank, columns = _open_usual(line, "usual", stop)
    rate, sent, began_s = target.rate / 2, 0, time.monotonic()
    for number in _paced(rate, stop):
        line.send(rank.next(Stats(manifest_id=1, step=number, columns=columns[number % 2])), stop)
        sent += 1
    seconds = time.monotonic() - began_s
    line.close()
    return Outcome(notes=[f"{sent / seconds:,.0f} records/s, of {target.rate:,.0f}"])


def find_capacity(target: Target) -> float:
    """Return how many records a second an aggregator acknowledges of one that never waits."""
    end_s = time.monotonic() + CAPACITY_S
    line = Line(target, Counter())

    def stop() -> bool:
        return time.monotonic() > end_s

    rank, columns = _open_usual(line, "flood", stop)
    began_s, step = time.monotonic(), 0
    while not stop():
        if rank.seq - line.acked < WINDOW:
            step += 1
            stats = Stats(manifest_id=1, step=step, columns=columns[step % 2])
            line.send(rank.next(stats), stop)
        else:
            line.wait(20)
    rate = line.acked / (time.monotonic() - began_s)
    line.send(rank.next(Bye()), lambda: False)
    line.close()
    return rate


def _open_usual(line: Line, run: str, stop: Stop) -> tuple[Session, list[dict[str, Column]]]:
    rank = Session(Hello(run=run, rank=0, world=1))
    _open(line, [rank], manifest_of([f"layer{number}" for number in range(LAYERS)]), stop)
    return rank, healthy_columns(random.Random(0))[:2]


def many_readers(target: Target, stop: Stop, refused: Refused) -> Outcome:
    """500 alert streams of which 150 are never read, while an alert begins or ends each 0.3 s."""
    readers = AlertReaders(target.http)
    line = Line(target, refused)
    rank = Session(Hello(run="alerting", rank=0, world=1))
    _open(line, [rank], manifest_of(["one", "two"]), lambda: False)
    step, due_s = 0, time.monotonic()
    while step < FLAP_STEPS or not stop():  # at least until the first one
        value = float("nan") if step // 6 % 2 else 1.0
        readers.note_sent(step)
        line.send(rank.next(_stats(step, {"l2": [value] * 2})), lambda: False)
        step, due_s = step + 1, due_s + 1 / 20
        readers.read(due_s)
    wrongs = list(readers.finish())
    line.close()
    readers.close()
    return Outcome(notes=list(readers.told()), wrongs=wrongs)


ATTACKS: Final[dict[str, Callable[[Target, Stop, Refused], Outcome | None]]] = {
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
    "half of capacity": half_of_capacity,
    "many readers": many_readers,
}

WELL_MEANT: Final = ("half of capacity", "many readers")
"""Those that do not yield the processor: it is measured what they get, too."""

MEASURED: Final = ("half of capacity",)
"""Those that need to know how much the aggregator can take."""

CONFIGS: Final = {"many readers": alert_readers.CONFIG}
"""What is set for some of them."""
