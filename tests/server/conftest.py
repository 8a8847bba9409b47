"""The aggregator, in this process or in one of its own, and peers that speak its protocol."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import zmq

from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import Entry
from gradwatch_server.engine.engine import Engine
from gradwatch_server.ingest.socket import Ingest
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_wire import (
    Ack,
    Alert,
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

COMMAND = Path(sys.executable).with_name("gradwatch")
NOT_LONGER_S = 15.0


def wait_until(condition: Callable[[], Any], timeout_s: float = NOT_LONGER_S) -> Any:
    """Return what *condition* gives once it is true."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
    return value


@pytest.fixture(name="wait_until", scope="session")
def wait_until_fixture() -> Callable[..., Any]:
    return wait_until


def stats_of(step: int, l2: Sequence[float], **scalars: float) -> Stats:
    return Stats(manifest_id=1, step=step, scalars=scalars, columns={"l2": Column.pack("<f8", l2)})


class Peer:
    """One rank's side of the protocol over a real socket: it sends what it is told to."""

    numbers = itertools.count(1)

    def __init__(self, endpoint: str, run: str = "gpt", **hello: Any) -> None:
        self.session = os.urandom(16)
        settings: dict[str, Any] = {"run": run, "rank": 0, "world": 1}
        self.greeting = Hello(**settings | hello)
        self.seq = 0
        self.alerts: list[dict[str, Any]] = []
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(endpoint)

    def send_frames(self, *frames: bytes) -> None:
        self._socket.send_multipart(list(frames))

    def send_as(self, seq: int, low: int, record: Record) -> None:
        envelope = Envelope(session=self.session, seq=seq, low=low, record=record)
        self.send_frames(*encode(envelope))

    def send(self, record: Record, low: int = 1) -> int:
        """Send the next record in sequence; return its number."""
        self.seq += 1
        self.send_as(self.seq, low, record)
        return self.seq

    def say(self, record: Record) -> Record:
        """Send a record without a number, and return the answer."""
        self.send_as(0, 0, record)
        return self.hear()

    def hear(self, timeout_s: float = NOT_LONGER_S) -> Record:
        """Return the next record that is no alert."""
        deadline = time.monotonic() + timeout_s
        while self._socket.poll(max(0, round(1000 * (deadline - time.monotonic())))):
            envelope = decode(self._socket.recv_multipart())
            assert envelope.session == self.session
            if not isinstance(envelope.record, Alert):
                return envelope.record
            self.alerts.append(dict(envelope.record.alert))
        raise AssertionError("no answer")

    def is_silent(self, seconds: float) -> bool:
        return not self._socket.poll(round(seconds * 1000))

    def greet(self) -> Welcome:
        """Say HELLO until it is heard: it may go down with the connection to an earlier engine."""
        deadline = time.monotonic() + NOT_LONGER_S
        while time.monotonic() < deadline:
            self.send_as(0, 0, self.greeting)
            while self._socket.poll(500):
                answer = self.hear()
                if isinstance(answer, Welcome):
                    return answer
        raise AssertionError("no WELCOME")

    def acked(self, upto: int | None = None) -> Ack:
        """Wait until all, or all up to a number, is acknowledged."""
        while True:
            answer = self.hear()
            assert isinstance(answer, Ack), answer
            if answer.acked >= (self.seq if upto is None else upto):
                return answer

    def declare(self, names: Sequence[str] = ("a", "b"), **changes: Any) -> None:
        settings: dict[str, Any] = {
            "manifest_id": 1,
            "names": tuple(names),
            "numel": Column.pack("<u8", [10] * len(names)),
            "dtypes": ("float32",) * len(names),
            "order": "forward",
        }
        self.send(Manifest(**settings | changes))

    def attach(self, names: Sequence[str] = ("a", "b"), **changes: Any) -> Peer:
        """Greet, and declare the layers."""
        self.greet()
        self.declare(names, **changes)
        self.acked()
        return self

    def stats(self, step: int, l2: Sequence[float] = (1.0, 1.0), **scalars: float) -> int:
        return self.send(stats_of(step, l2, **scalars))

    def steps(self, first: int, *norms: float) -> None:
        """Send a step per norm, from *first* on, and wait until they are stored."""
        for step, norm in enumerate(norms, first):
            self.stats(step, (norm, 1.0))
        self.acked()

    def close(self) -> None:
        self._socket.close()
        self._context.term()


@pytest.fixture
def peers() -> Iterator[Callable[..., Peer]]:
    """Connect to an endpoint: `peers(endpoint, run="gpt", rank=0, world=1)`."""
    made: list[Peer] = []

    def connect(endpoint: str, **settings: Any) -> Peer:
        made.append(Peer(endpoint, **settings))
        return made[-1]

    yield connect
    for peer in made:
        peer.close()


@pytest.fixture(scope="session")
def make_stats() -> Callable[..., Stats]:
    return stats_of


class Running:
    """An engine in a thread of this process, with its store and its port."""

    def __init__(self, directory: Path, endpoint: str, settings: dict[str, Any]) -> None:
        clock = settings.pop("clock", None) or Clock()
        self.store = SQLiteStore.open(directory, clock)
        self.path = Path(self.store.name)
        self.ingest = Ingest(endpoint)
        self.endpoint = self.ingest.endpoint
        self.woken = threading.Event()
        self.failed = threading.Event()
        try:
            self.engine = Engine(
                self.store,
                self.ingest,
                settings.pop("rules", Rules()),
                clock=clock,
                window_steps=settings.pop("window_steps", 64),
                session_timeout_s=settings.pop("session_timeout_s", 30.0),
                on_alerts=self.woken.set,
                on_failure=self.failed.set,
                retention=settings.pop("retention", None),
            )
        except BaseException:
            self.close()
            raise
        self.published = self.engine.published
        self.engine.start()

    def view(self, run: str = "gpt") -> Any:
        return self.published.runs.get(run)

    def shows(self, run: str = "gpt", **expected: Any) -> Any:
        """Wait until a run's view has these values."""

        def check() -> Any:
            view = self.view(run)
            return view and all(getattr(view, k) == v for k, v in expected.items()) and view

        return wait_until(check)

    def entries(self) -> list[Entry]:
        """Return what the log has."""
        return [entry for _, entry in self.store.log.entries()]

    def events(self) -> list[tuple[int, str, str]]:
        """Return what the store has: cursor, alert id, state."""
        return [
            (e.cursor, e.alert["id"], e.alert["state"]) for e in self.store.alert_events.after(0)
        ]

    def close(self) -> None:
        if hasattr(self, "engine"):
            self.engine.stop()
        self.ingest.close()
        self.store.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start an engine: `start(rules=..., endpoint=...)`; each stops the one before it."""
    made: list[Running] = []

    def begin(*, endpoint: str = "tcp://127.0.0.1:0", **settings: Any) -> Running:
        stop()
        made.append(Running(tmp_path / "data", endpoint, settings))
        return made[-1]

    def stop() -> None:
        while made:
            made.pop().close()

    yield begin
    stop()


class Service:
    """A `gradwatch serve` process."""

    def __init__(self, directory: Path, *arguments: str, **environ: str) -> None:
        self.arguments = {
            "--http": "127.0.0.1:0",
            "--ingest": "tcp://127.0.0.1:0",
            "--data": str(directory),
        }
        self._more = arguments
        self._environ = os.environ | environ
        directory.parent.mkdir(exist_ok=True)
        # A file, for nobody reads a pipe while the process runs, and a full one would stop it.
        self._errors = directory.parent / "stderr.txt"
        self.begin()

    def begin(self) -> None:
        """Start the process and wait until it is ready."""
        pairs = itertools.chain(*self.arguments.items())
        with self._errors.open("a") as errors:
            self.process = subprocess.Popen(
                [COMMAND, "serve", *pairs, *self._more],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._environ,
            )
        said = {}
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if match := re.fullmatch(r" +(\w+) +(.*)\n", line):
                said[match[1]] = match[2]
            if "data" in said:
                break
        else:
            self.process.communicate()
            raise AssertionError(self._errors.read_text())
        self.url, self.ingest = said["http"], said["ingest"]
        wait_until(self.answers)

    def answers(self) -> bool:
        try:
            return self.get("/healthz").is_success
        except httpx.TransportError:
            return False

    def again(self) -> None:
        """Start it anew on the same ports."""
        self.arguments["--http"] = self.url.removeprefix("http://")
        self.arguments["--ingest"] = self.ingest
        self.begin()

    def get(self, path: str, **settings: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10, trust_env=False, **settings)

    def json(self, path: str, **settings: Any) -> Any:
        return self.get(path, **settings).raise_for_status().json()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, float]:
        """End it; return exit code, what it wrote to stderr, and the seconds it took."""
        began = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=NOT_LONGER_S)
        return self.process.returncode, self._errors.read_text(), time.monotonic() - began


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One aggregator process for the whole module: each test has runs of its own."""
    made = Service(tmp_path_factory.mktemp("service") / "data")
    yield made
    code, errors, _ = made.stop()
    assert code == 0, errors
    assert "Traceback" not in errors, errors


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Start an aggregator process of the test's own: `serve("--config", ..., NAME="...")`."""
    made: list[Service] = []

    def begin(*arguments: str, **environ: str) -> Service:
        made.append(Service(tmp_path / "data", *arguments, **environ))
        return made[-1]

    yield begin
    for one in made:
        one.stop(signal.SIGKILL)


class Listener:
    """A subscriber of an alert stream, in a thread."""

    def __init__(self, url: str, path: str, after: int | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.ended = threading.Event()
        self.open = threading.Event()
        self._headers = {} if after is None else {"Last-Event-ID": str(after)}
        self._client = httpx.Client(timeout=30, trust_env=False)
        self._thread = threading.Thread(target=self._listen, args=(url + path,))
        self._thread.start()
        assert self.open.wait(NOT_LONGER_S)

    def _listen(self, url: str) -> None:
        with (
            contextlib.suppress(httpx.TransportError, httpx.StreamError),
            self._client.stream("GET", url, headers=self._headers) as response,
        ):
            response.raise_for_status()
            self._socket = response.extensions["network_stream"].get_extra_info("socket")
            for line in response.iter_lines():
                field, _, value = line.partition(": ")
                if field == "id":
                    self.ids.append(value)
                elif field == "data":
                    self.events.append(json.loads(value))
                # Only now is it sure from when on the stream misses nothing.
                self.open.set()
        self.ended.set()

    def cursors(self, count: int) -> list[int]:
        """Wait for so many events; return their cursors."""
        wait_until(lambda: len(self.events) >= count)
        return [event["cursor"] for event in self.events]

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it ended before
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(NOT_LONGER_S)
        self._client.close()
        assert not self._thread.is_alive()


@pytest.fixture
def listen() -> Iterator[Callable[..., Listener]]:
    """Subscribe: `listen(url, "/alerts/stream", after=0)`."""
    made: list[Listener] = []

    def subscribe(url: str, path: str, after: int | None = None) -> Listener:
        made.append(Listener(url, path, after))
        return made[-1]

    yield subscribe
    for one in made:
        one.close()
