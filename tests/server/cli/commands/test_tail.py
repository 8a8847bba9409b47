"""`gradwatch tail`: alerts a line each, over restarts."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

import pytest

from gradwatch_server.cli.client import follow_alerts
from tests.support.aggregator import GRADWATCH, Aggregator, Serve
from tests.support.command import Command, error
from tests.support.waiting import PATIENCE_S, wait_until

NAN = math.nan
STAMP: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


class Tail:
    """A `gradwatch tail` process, read line by line."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [GRADWATCH, "tail", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"COLUMNS": "60"},
        )

    def lines(self, count: int) -> list[str]:
        assert self.process.stdout is not None
        return [self.process.stdout.readline() for _ in range(count)]

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors


@pytest.fixture
def tail() -> Iterator[Callable[..., Tail]]:
    made: list[Tail] = []

    def start(*arguments: str) -> Tail:
        made.append(Tail(*arguments))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.end(signal.SIGKILL)
        one.process.communicate()


def test_a_cursor_from_the_future_is_one_line(invoke: Command, service: Aggregator) -> None:
    """A slip: the stream itself would begin at the first event, as after another log."""
    result = invoke("tail", "--after", "99999", "--url", service.url)

    assert error(result).startswith("cursor 99999 was not given out yet, newest is ")


def test_tail_prints_alerts_a_line_each_until_interrupted(
    tail: Callable[..., Tail], service: Aggregator
) -> None:
    peer = service.peer(run="tailed").attach()
    peer.steps(0, NAN, 1.0, 1.0, 1.0)
    process = tail("tailed", "--after", "0", "--url", service.url)
    first = process.lines(2)
    peer.steps(4, NAN)
    (third,) = process.lines(1)

    message = "NaN gradient since step"
    assert re.fullmatch(
        rf"#\d+ {STAMP} tailed firing critical nonfinite: {message} 0 on rank 0: a\n", first[0]
    )
    assert first[1].endswith(
        "resolved critical nonfinite: " + message + " 0 on rank 0: a; over at step 3\n"
    )
    assert third.endswith(f"{message} 4 on rank 0: a\n")
    assert process.end() == (0, "")


def test_tail_waits_for_a_run_that_is_not_there_yet(
    tail: Callable[..., Tail], service: Aggregator
) -> None:
    """S54: and says so once, for the name may be a slip."""
    process = tail("yet-to-come", "--after", "0", "--url", service.url)
    assert process.process.stderr is not None
    assert process.process.stderr.readline() == "gradwatch: no run 'yet-to-come' yet\n"
    other, peer = (service.peer(run=own).attach() for own in ("not-it", "yet-to-come"))
    other.steps(0, NAN)
    peer.steps(0, NAN)

    assert " yet-to-come firing critical nonfinite: " in process.lines(1)[0]
    assert process.end() == (0, "")


def test_tail_lists_the_past_and_stops(gradwatch: Command, service: Aggregator) -> None:
    """S54: all that is kept, or what came after a cursor; of a run without any nothing."""
    peer = service.peer(run="of-the-past").attach()
    peer.steps(0, NAN, 1.0, 1.0, 1.0)
    arguments = ("tail", "of-the-past", "--past", "--json", "--url", service.url)
    told = wait_until(lambda: [*map(json.loads, gradwatch(*arguments).stdout.splitlines())][1:])
    # Its rank may have fallen silent meanwhile.
    first, last, *_ = [json.loads(line) for line in gradwatch(*arguments).stdout.splitlines()]

    assert [first["state"], last["state"]] == ["firing", "resolved"]
    assert told[0] == last
    line, *_ = gradwatch(*arguments, "--after", str(first["cursor"])).stdout.splitlines()
    assert json.loads(line) == last
    nothing = gradwatch("tail", "nobody", "--past", "--url", service.url)
    assert (nothing.returncode, nothing.stdout) == (0, "")


def test_tail_goes_on_over_restarts_and_misses_nothing(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    service = serve()
    peer = service.peer().attach()
    peer.steps(0, NAN)
    wait_until(lambda: service.json("/healthz")["cursor"] == 1, "the alert is stored")
    events: list[dict[str, Any]] = []
    follower = threading.Thread(
        target=lambda: events.extend(itertools.islice(follow_alerts(service.url, None, None), 2))
    )
    with caplog.at_level("INFO", logger="httpx"):  # which names each answer
        follower.start()
        wait_until(lambda: "/alerts/stream" in caplog.text, "the stream is open")
    service.stop(signal.SIGKILL)
    service.start()
    peer.greet()
    peer.steps(1, 1.0, 1.0, 1.0, NAN)

    follower.join(PATIENCE_S)
    assert [(e["cursor"], e["state"]) for e in events] == [(2, "resolved"), (3, "firing")]


def test_tail_lives_through_keep_alives(tail: Callable[..., Tail]) -> None:
    """A comment between events is no event, also after the first one had an id."""
    at = "2026-11-22T03:04:05.678+00:00"
    event = {
        "cursor": 7,
        "updated_at": at,
        "run": "r",
        "state": "firing",
        "severity": "info",
        "rule": "x",
    }
    over = threading.Event()

    class Stream(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for number in (7, 8):
                data = json.dumps(event | {"cursor": number, "message": f"m{number}"})
                self.wfile.write(f"data: {data}\nid: {number}\n\n: ping\n\n: ping\n\n".encode())
            over.wait(PATIENCE_S)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Stream) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        process = tail("--after", "0", "--url", f"http://127.0.0.1:{server.server_port}")
        assert process.lines(2) == [
            "#7 2026-11-22T03:04:05Z r firing info x: m7\n",
            "#8 2026-11-22T03:04:05Z r firing info x: m8\n",
        ]
        assert process.end() == (0, "")
        over.set()
        server.shutdown()


@pytest.mark.slow
def test_tail_into_a_closed_pipe_ends_quietly(service: Aggregator) -> None:
    """`gradwatch tail | head -1`, with more to say than the pipe holds."""
    service.peer(run="piped").attach().steps(0, *[NAN, 1.0, 1.0, 1.0] * 80)
    command = f"{GRADWATCH} tail --json --after 0 --url {service.url} | head -n 1"
    result = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )

    assert json.loads(result.stdout)["cursor"] == 1
    assert result.stderr == ""
