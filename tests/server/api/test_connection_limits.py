"""Connections that keep the aggregator waiting, over real sockets and with few files."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.aggregator import Aggregator
from tests.support.certificate import make_certificate
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

FILES = 256
IDLE = 300
NUM_ANSWERS = 5

GARBAGE = b"\x00garbage\r\n\r\n"

Connect = Callable[..., socket.socket]
Start = Callable[..., Aggregator]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Start]:
    """Start an aggregator: `begin(files=(256, 256), NAME="...")`."""
    made: list[Aggregator] = []

    def start(files: tuple[int, int] | None = None, **environ: str) -> Aggregator:
        made.append(Aggregator(tmp_path / "data", **environ))
        made[-1].files = files
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        assert "Traceback" not in one.errors, one.errors[:2_000]
        one.close()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connect to an aggregator, and send some bytes: `connect(service, b"GET")`."""
    made: list[socket.socket] = []

    def open_one(service: Aggregator, sent: bytes = b"") -> socket.socket:
        host, _, port = service.url.partition("//")[2].partition(":")
        made.append(socket.create_connection((host, int(port)), PATIENCE_S))
        made[-1].sendall(sent)
        return made[-1]

    yield open_one
    for one in made:
        one.close()


def is_closed(connection: socket.socket) -> bool:
    """Tell whether the other end has closed it; what it sent is dropped."""
    connection.setblocking(False)
    try:
        while connection.recv(4_096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def all_of(connection: socket.socket) -> bytes:
    """Return what comes until the other end closes."""
    got = b""
    while more := connection.recv(4_096):
        got += more
    return got


def metric(service: Aggregator | httpx.Client, name: str) -> float:
    lines = service.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[-1])


def refused(service: Aggregator | httpx.Client, budget: str) -> float:
    return metric(service, f'gradwatch_budget_refused_total{{budget="{budget}"}}')


def test_more_idle_connections_than_files_do_not_end_http(begin: Start, connect: Connect) -> None:
    """S29: who is connected is served on; others are refused until the idle ones are dropped."""
    service = begin((FILES, FILES), GRADWATCH_BUDGETS__HTTP_WAIT_S="4")
    with httpx.Client(base_url=service.url, timeout=PATIENCE_S) as known:
        assert known.get("/healthz").is_success
        held = [connect(service, b"" if number % 2 else b"GET /") for number in range(IDLE)]
        assert known.get("/healthz").is_success
        most = FILES // 4
        wait_until(lambda: refused(known, "http_connections") > IDLE - most, "the rest is refused")
        assert metric(known, 'gradwatch_budget_used{budget="http_connections"}') <= most
        assert httpx.get(f"{service.url}/healthz", timeout=PATIENCE_S).status_code == 503
        wait_until(lambda: all(map(is_closed, held)), "the idle ones are dropped")
        assert known.get("/healthz").is_success

    assert service.get("/healthz").is_success
    assert len(service.errors.splitlines()) < 10
    assert service.stop() == 0


@pytest.mark.exhaustive
def test_more_idle_connections_than_files_to_both_ports_leave_senders_as_they_are(
    begin: Start, connect: Connect
) -> None:
    """S29: who sends goes on, who comes anew is welcomed, HTTP answers, and the log stays short."""
    service = begin((FILES, FILES), GRADWATCH_BUDGETS__HTTP_WAIT_S="2")
    sends = service.peer().attach()
    host, _, port = service.ingest.removeprefix("tcp://").rpartition(":")
    with contextlib.ExitStack() as held:

        def crowd() -> bool:
            with contextlib.suppress(TimeoutError):  # at the limit nobody seems to be there
                for _ in range(FILES // 8):
                    held.enter_context(socket.create_connection((host, int(port)), timeout=0.3))
            return refused(service, "ingest_connections") > 0

        wait_until(crowd, "the ingest port takes no more")
        for _ in range(IDLE):
            connect(service)
        for step in range(3):
            sends.stats(step)
            sends.acked()
        wait_until(lambda: service.get("/healthz").is_success, "HTTP answers again")
        comes = service.peer(run="comes").attach()  # once some were idle for too long
        comes.stats(0)
        comes.acked()

    assert len(service.errors.splitlines()) < 20
    assert service.stop() == 0


def test_all_files_that_the_system_allows_are_used(begin: Start) -> None:
    """S29: shells often start programs with 1,024, of a million."""
    service = begin((200, 3_000))
    limits = Path(f"/proc/{service.process.pid}/limits").read_text()
    (files,) = (line.split() for line in limits.splitlines() if line.startswith("Max open files"))

    assert files[3:5] == ["3000", "3000"]
    assert "open files is 3000: at most 1500 connections to the ingest port" in service.errors


@pytest.mark.parametrize(
    ("sent", "part"),
    [
        (b"GET /healthz HTTP/1.1\r\nHo", b"header"),
        (b"POST /silences HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{", b"body"),
    ],
)
def test_half_a_request_is_answered_once_it_took_too_long(
    begin: Start, connect: Connect, sent: bytes, part: bytes
) -> None:
    """S29: as a problem document; the connection is closed."""
    service = begin(GRADWATCH_BUDGETS__HTTP_WAIT_S="0.3")
    got = all_of(connect(service, sent))

    assert got.startswith(b"HTTP/1.1 408 ")
    assert b"application/problem+json" in got
    assert b"the " + part + b" of the request did not come in time" in got
    assert refused(service, "http_wait_s") == 1


def test_a_connection_without_a_request_is_closed(begin: Start, connect: Connect) -> None:
    """S29: before its first request and after it, without a word."""
    service = begin(GRADWATCH_BUDGETS__HTTP_WAIT_S="0.4")
    silent = connect(service)
    served = connect(service, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert all_of(silent) == b""
    assert all_of(served).startswith(b"HTTP/1.1 200 ")
    assert refused(service, "http_wait_s") == 1


def test_a_connection_that_is_used_is_kept(begin: Start, connect: Connect) -> None:
    """A pause is counted from the last answer."""
    service = begin(GRADWATCH_BUDGETS__HTTP_WAIT_S="1.5")
    used, unused = (
        connect(service, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(2)
    )

    def ask() -> bool:
        used.setblocking(True)
        used.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert used.recv(4_096)
        return is_closed(unused)

    wait_until(ask, "the other one is closed")
    assert not is_closed(used)


def test_a_slow_reader_gets_all_of_a_long_answer(begin: Start) -> None:
    """Longer than a connection may be idle, as long as something goes on."""
    service = begin(GRADWATCH_BUDGETS__HTTP_WAIT_S="0.5")
    names = [f"{'x' * 400}.{number}" for number in range(4_000)]
    peer = service.peer().attach(names)
    service.shows(peer)
    wanted = len(service.get("/runs/gpt").content)
    host, _, port = service.url.partition("//")[2].partition(":")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        slow.connect((host, int(port)))
        slow.settimeout(PATIENCE_S)
        # More than the system holds for a reader: the rest waits in the process.
        slow.sendall(NUM_ANSWERS * b"GET /runs/gpt HTTP/1.1\r\nHost: localhost\r\n\r\n")
        got = bytearray()

        def read() -> bool:
            time.sleep(0.02)  # much longer in all than it may be idle
            more = slow.recv(65_536)
            got.extend(more)
            return not more

        wait_until(read, "the connection is closed after all was taken")

    assert got.count(b"HTTP/1.1 200 ") == NUM_ANSWERS
    assert len(bytes(got).rpartition(b"\r\n\r\n")[2]) == wanted


def test_a_handshake_that_never_ends_is_cut(begin: Start, connect: Connect, tmp_path: Path) -> None:
    """S29: with TLS nothing of HTTP is there yet, and the connection counts all the same."""
    service = begin(
        (FILES, FILES), GRADWATCH_BUDGETS__HTTP_WAIT_S="3", **make_certificate(tmp_path)
    )
    held = [connect(service) for _ in range(IDLE)]
    files = Path(f"/proc/{service.process.pid}/fd")

    wait_until(lambda: sum(map(is_closed, held)) >= IDLE - FILES // 4, "the rest is refused")
    assert len(list(files.iterdir())) < FILES // 2
    wait_until(lambda: all(map(is_closed, held)), "all are closed")
    assert service.answers()


def test_what_is_no_http_is_told_once_and_counted(begin: Start, connect: Connect) -> None:
    """S33: to the caller each time, in the log once for each of them."""
    service = begin()
    for _ in range(300):
        got = all_of(connect(service, GARBAGE))
        assert got.startswith(b"HTTP/1.1 400 ")
        assert b'"detail":"Invalid HTTP request received."' in got

    assert metric(service, 'gradwatch_refused_total{kind="http"}') == 300
    assert service.errors.count("Invalid HTTP request received. (from 127.0.0.1)") == 1
    assert refused(service, "log_lines_per_min") == 299


def test_a_caller_who_takes_nothing_of_a_long_answer_is_dropped(
    begin: Start, connect: Connect
) -> None:
    """S30: not only of a stream."""
    service = begin(GRADWATCH_BUDGETS__HTTP_WAIT_S="0.5")
    peer = service.peer().attach([f"{'x' * 400}.{number}" for number in range(4_000)])
    service.shows(peer)
    connect(service, NUM_ANSWERS * b"GET /runs/gpt HTTP/1.1\r\nHost: localhost\r\n\r\n")

    wait_until(lambda: refused(service, "http_wait_s") >= 1, "the connection is dropped")
