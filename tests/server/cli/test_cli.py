"""The commands, as processes: what they print, how they exit, and never a traceback."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from gradwatch_server.cli.app import app
from gradwatch_server.cli.client import follow_alerts
from gradwatch_server.storage.sqlite.store import DATABASE_NAME
from gradwatch_wire import Bye, Column, Stats, __version__
from tests.support.aggregator import GRADWATCH, Aggregator, Serve
from tests.support.command import Command, run_command
from tests.support.peer import NewPeer
from tests.support.waiting import PATIENCE_S, wait_until

NAN = math.nan
ANY_PORTS = ("--http", "127.0.0.1:0", "--ingest", "tcp://127.0.0.1:0")


@pytest.fixture
def gradwatch(tmp_path: Path) -> Command:
    """Run a command to its end in an empty folder: `gradwatch("health", "x", URL="...")`."""
    return partial(run_command, tmp_path)


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The same in this process, for variants: `invoke("health", "x")`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        result = CliRunner().invoke(app, arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return subprocess.CompletedProcess(
            arguments, result.exit_code, result.stdout, result.stderr
        )

    return run


def error(result: subprocess.CompletedProcess[str]) -> str:
    """Return the one line that a failed command says."""
    assert result.returncode == 1
    *before, line = result.stderr.splitlines()
    assert all(" INFO " in other for other in before), result.stderr
    assert line.startswith("gradwatch: ")
    return line.removeprefix("gradwatch: ")


# serve


def test_a_taken_http_port_is_one_line(gradwatch: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = error(gradwatch("serve", "--http", address, "--ingest", "tcp://127.0.0.1:0"))

    assert line.startswith(f"cannot bind the HTTP address {address}: Address already in use")
    assert line.endswith("; give a free one with --http")


def test_a_taken_ingest_port_is_one_line(gradwatch: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        line = error(gradwatch("serve", "--http", "127.0.0.1:0", "--ingest", endpoint))

    assert line.startswith(f"cannot bind the ingest endpoint {endpoint}: Address already in use")


def test_a_second_aggregator_on_the_directory_is_one_line(
    gradwatch: Command, service: Aggregator
) -> None:
    data = service.directory
    line = error(gradwatch("serve", *ANY_PORTS, "--data", str(data)))

    assert line == (
        f"the data directory {data} is in use by another aggregator (pid {service.process.pid}); "
        "stop it, or choose another directory with --data"
    )
    assert service.json("/readyz") == {"status": "ready"}


def test_an_unusable_directory_is_one_line(gradwatch: Command, tmp_path: Path) -> None:
    """A file in its place, here."""
    (tmp_path / "data").write_text("")

    assert error(gradwatch("serve", *ANY_PORTS, "--data", "data")) == (
        "cannot use the data directory data: File exists; choose one with --data"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[rules", "config file gradwatch.toml: "),
        ("[rules.exploding]\nlimit = 0", "setting 'rules.exploding.limit': "),
    ],
)
def test_a_malformed_config_is_one_line(
    gradwatch: Command, tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "gradwatch.toml").write_text(text)

    assert error(gradwatch("serve", *ANY_PORTS)).startswith(says)


def test_a_bad_variable_and_a_bad_host_are_one_line(gradwatch: Command) -> None:
    assert "GRADWATCH_*" in error(gradwatch("serve", *ANY_PORTS, GRADWATCH_RULES="{"))
    line = error(gradwatch("serve", "--insecure", "--http", "a..b:1", *ANY_PORTS[2:]))
    assert line.startswith("cannot bind the HTTP address a..b:1: ")


def test_help_shows_no_default_where_there_is_none(invoke: Callable[..., Any]) -> None:
    """S54: no `[default: ()]`."""
    shown = invoke("serve", "--help").stdout

    assert "[default: (127.0.0.1:8420)]" in shown
    assert "()" not in shown


@pytest.mark.parametrize("command", ["health", "tail", "replay", ""])
def test_help_shows_flags_as_what_they_are(invoke: Callable[..., Any], command: str) -> None:
    """S54: not as if `--json` took a value."""
    shown = invoke(*filter(None, [command]), "--help").stdout

    assert "--help" in shown
    assert "bool" not in shown


FULL_DISK: Final = """
mount -t tmpfs -o size={size},mode=700 tmpfs data || exit 77
[ {filled} = no ] || cat /dev/zero > data/filled 2> /dev/null
exec "$0" serve --data data "$@"
"""


@pytest.mark.slow
@pytest.mark.parametrize("filled", ["no", "yes"], ids=["no page fits", "nothing fits"])
def test_a_full_disk_is_one_line(tmp_path: Path, filled: str) -> None:
    """S45: which says to make room; nothing is wrong with the file."""
    (tmp_path / "data").mkdir()
    script = FULL_DISK.format(size="64k", filled=filled)
    unshare = shutil.which("unshare") or pytest.skip("there is no unshare(1)")
    result = subprocess.run(
        [
            unshare,
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            script,
            GRADWATCH,
            *ANY_PORTS,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if result.returncode == 77 or result.stderr.startswith("unshare:"):
        pytest.skip(f"no file system can be mounted here: {result.stderr}")

    assert "Traceback" not in result.stderr
    assert error(result) == (
        f"cannot open the log data/{DATABASE_NAME}: database or disk is full; "
        "make room on its disk, or choose another directory with --data"
    )


@pytest.mark.parametrize(
    ("damage", "advice"),
    [
        (b"this is no database", "move the file away to start afresh"),
        (
            b"SQLite format 3\0" + bytes(range(256)) * 400,
            "move the data directory away, or choose another with --data",
        ),
    ],
)
def test_a_corrupt_log_is_one_line(
    gradwatch: Command, tmp_path: Path, damage: bytes, advice: str
) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / DATABASE_NAME
    file.write_bytes(damage)
    line = error(gradwatch("serve", *ANY_PORTS, "--data", "data"))

    assert line.startswith(f"cannot open the log data/{DATABASE_NAME}: ")
    assert line.endswith(advice)
    assert file.read_bytes() == damage


def test_the_addresses_are_announced_once_they_are_bound(serve: Serve) -> None:
    """Port 0 is any; what is printed can be used."""
    service = serve(*ANY_PORTS)

    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*", service.url)
    assert re.fullmatch(r"tcp://127\.0\.0\.1:[1-9]\d*", service.ingest)
    assert service.json("/healthz")["status"] == "ok"


@pytest.mark.parametrize("named_by", ["--config", "GRADWATCH_CONFIG"])
def test_settings_reach_the_service(
    serve: Serve, peers: NewPeer, tmp_path: Path, named_by: str
) -> None:
    config = tmp_path / "strict.toml"
    config.write_text("[rules.exploding]\nlimit = 2\nclear = 1\nfor_steps = 1\n")
    if named_by == "--config":
        service = serve("--config", str(config))
    else:
        service = serve(GRADWATCH_CONFIG=str(config))
    peers(service.ingest).attach().steps(0, 3.0)
    (alert,) = wait_until(lambda: service.json("/alerts"))

    assert (alert["rule"], alert["origin"]["threshold"]) == ("exploding", 2.0)
    service.send(signal.SIGHUP)
    wait_until(lambda: "the rules are those in force already" in service.errors)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(serve: Serve, peers: NewPeer, number: int) -> None:
    """Exit code 0, with a rank attached; the log is checkpointed and closed."""
    service = serve()
    peers(service.ingest).attach().steps(0, 1.0)

    assert service.stop(number) == 0
    assert "Traceback" not in service.errors
    assert not (service.directory / f"{DATABASE_NAME}-wal").exists()


# runs, health, tail


def test_runs_are_listed(gradwatch: Command, serve: Serve, peers: NewPeer) -> None:
    """A table for people, a document a line for programs."""
    service = serve()
    assert gradwatch("runs", "--url", service.url).stdout == "no runs yet\n"
    peers(service.ingest, run="one").attach().steps(0, NAN)
    peers(service.ingest, run="two").attach().steps(0, 1.0)
    wait_until(lambda: [run["step"] for run in service.json("/runs")] == [0, 0])

    table = gradwatch("runs", GRADWATCH_URL=service.url).stdout.splitlines()
    lines = gradwatch("runs", "--json", "--url", service.url + "/").stdout.splitlines()

    assert table[0].split() == [
        "run",
        "phase",
        "status",
        "step",
        "ranks",
        "score",
        "firing",
        "stored",
        "lost",
    ]
    two, one = (line.split()[:3] for line in table[1:])
    assert one == ["one", "running", "critical"]
    assert two[:2] == ["two", "running"]
    assert two[2] in ("healthy", "stalled")  # it says no more, and a command may take long
    assert [json.loads(line)["run"] for line in lines] == ["two", "one"]


def has_status(service: Aggregator, run: str, status: str) -> bool:
    return bool(service.get(f"/runs/{run}/health").json().get("status") == status)


def test_health_is_told_and_exits_as_asked(
    gradwatch: Command, invoke: Callable[..., Any], service: Aggregator, peers: NewPeer
) -> None:
    """0 however it is, 3 for the status that a job script asked about, or a worse one (S53)."""
    good = peers(service.ingest, run="good").attach()
    good.steps(0, 1.0)
    good.send(Bye(reason="closed"))  # one that goes on would soon be called stalled
    peers(service.ingest, run="bad").attach(("h.0\x1b[31m", "h.1")).steps(0, NAN)
    for run, status in (("bad", "critical"), ("good", "healthy")):
        wait_until(partial(has_status, service, run, status), f"{run} is {status}")

    def health(*arguments: str) -> Any:
        return invoke("health", *arguments, "--url", service.url)

    assert health("good", "--fail-on", "healthy").returncode == 3
    bad = health("bad")
    assert bad.returncode == 0
    assert "critical" in bad.stdout
    message = r"NaN in the gradient of h.0\x1b[31m at step 0 on rank 0"
    assert f"critical nonfinite: {message}" in bad.stdout
    assert r"nan in h.0\x1b[31m on rank 0 at step 0" in bad.stdout
    assert "\x1b" not in bad.stdout
    failed = gradwatch("health", "bad", "--fail-on", "critical", "--url", service.url)
    assert failed.returncode == 3
    # As it was, but that its rank may be silent by now, and a longer line widens all.
    before, after = (
        [line.split() for line in text.splitlines()] for text in (bad.stdout, failed.stdout)
    )
    kept = ("status", "step", "score", "gradient", "layers", "records", "first")
    assert [own for own in before if own[0] in kept] == [own for own in after if own[0] in kept]
    assert health("bad", "--fail-on", "degraded").returncode == 3
    assert health("good", "--fail-on", "incomplete").returncode == 0
    assert health("good", "--fail-on", "critical").returncode == 0
    document = json.loads(health("bad", "--json").stdout)
    assert document["first_bad"] == {
        "step": 0,
        "rank": 0,
        "layer": "h.0\x1b[31m",
        "kind": "nan",
        "bad_loss": None,
        "first_gradient": "h.0\x1b[31m",
        "module": None,
        "layers": ["h.0\x1b[31m"],
        "num_layers": 1,
    }


def test_health_shows_what_the_training_gave(
    gradwatch: Command, service: Aggregator, peers: NewPeer
) -> None:
    """Loss, learning rate, step time, and where the gradients were read (S57)."""
    peer = peers(service.ingest, run="told").attach(("a",))
    columns = {"l2": Column.pack("<f8", [1.0])}
    scalars = {"loss": 2.5, "lr": 3e-4, "step_time_s": 0.25}
    labels = {"point": "backward"}
    peer.send(Stats(manifest_id=1, step=0, scalars=scalars, columns=columns, labels=labels))
    peer.acked()
    service.reaches("told", 0)
    silent = peers(service.ingest, run="silent").attach(("a",))
    silent.send(Stats(manifest_id=1, step=0, columns=columns))
    silent.acked()
    service.reaches("silent", 0)

    report = service.health("told")
    assert (report["lr"], report["step_time_s"]) == (3e-4, 0.25)
    shown = gradwatch("health", "told", "--url", service.url).stdout
    split = (line.partition("  ") for line in shown.splitlines())
    lines = {name: value.strip() for name, _, value in split}
    assert lines["loss"] == "2.5"
    assert lines["learning rate"] == "0.0003"
    assert lines["step time"] == "0.25 s"
    assert lines["gradients of"] == "the end of the backward pass, before clipping"

    report = service.health("silent")
    assert (report["lr"], report["step_time_s"]) == (None, None)
    shown = gradwatch("health", "silent", "--url", service.url).stdout
    assert shown.count("not given") == 3


def test_a_run_that_ended_with_a_critical_alert_still_fails_the_job(
    gradwatch: Command, service: Aggregator, peers: NewPeer
) -> None:
    """The phase has changed, the status has not."""
    peer = peers(service.ingest, run="over").attach()
    peer.steps(0, NAN)
    peer.send(Bye())
    peer.acked()
    wait_until(lambda: service.json("/runs/over/health")["phase"] == "ended")
    result = gradwatch("health", "over", "--fail-on", "critical", "--url", service.url)

    assert result.returncode == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nope", "a/b", "?", "../runs", "../healthz#", "x y", "\x1b[31m"])
def test_an_unknown_run_is_one_line(
    invoke: Callable[..., Any], service: Aggregator, name: str
) -> None:
    """A name that no run can have is told as such, whatever it would mean in a URL."""
    is_possible = name == "nope"  # and then `tail` waits for it, and `alerts` has none
    told = f"no run {name!a}; known runs: " if is_possible else f"run name {name!a} is not 1 to 128"
    ways = [("health",), ("rules", "--run")]
    ways += [] if is_possible else [("tail",), ("alerts",)]
    for way in ways:
        line = error(invoke(*way, name, "--url", service.url))
        assert line.startswith(told)
        assert line.isprintable()


@pytest.mark.slow
@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1", "http://a..b:80", "http://[", "ftp://x", "", "x"],
)
def test_no_aggregator_there_is_one_line(invoke: Callable[..., Any], url: str) -> None:
    for arguments in (["runs"], ["health", "x"], ["tail"], ["tail", "--after", "0"]):
        line = error(invoke(*arguments, "--url", url))
        assert line.startswith(f"no aggregator answers at {url} (")
        assert line.endswith("start one with 'gradwatch serve' or give --url")


@pytest.mark.parametrize(
    "command", [("health", "r"), ("runs",), ("tail",), ("tail", "--after", "0")]
)
def test_the_ingest_port_as_url_is_one_line_at_once(
    gradwatch: Command, service: Aggregator, command: tuple[str, ...]
) -> None:
    """It would never answer in HTTP, and the request would wait for its time-out (S54)."""
    url = service.ingest.replace("tcp://", "http://")
    began_s = time.monotonic()
    line = error(gradwatch(*command, "--url", url))

    assert line == (
        f"{url} is an ingest port, which takes records and answers no questions; "
        "give the HTTP address with --url, by default port 8420"
    )
    assert time.monotonic() - began_s < 8  # a time-out takes ten


def test_a_proxy_is_not_asked(gradwatch: Command, service: Aggregator) -> None:
    """Clusters set one for everything; the aggregator is in the same network."""
    result = gradwatch(
        "runs",
        "--url",
        service.url,
        HTTP_PROXY="http://127.0.0.1:1",
        ALL_PROXY="http://127.0.0.1:1",
    )

    assert result.returncode == 0


class Other(BaseHTTPRequestHandler):
    """A web server that is no aggregator."""

    def do_GET(self) -> None:
        self.send_response(500 if "runs/x" in self.path else 200)
        self.end_headers()
        self.wfile.write(b"<html>It works!</html>")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.mark.slow
def test_another_server_on_the_port_is_one_line(invoke: Callable[..., Any]) -> None:
    with HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        lines = [
            error(invoke("runs", "--url", url)),
            error(invoke("health", "x", "--url", url)),
            error(invoke("tail", "--url", url)),
            error(invoke("tail", "--after", "0", "--url", url)),
        ]
        server.shutdown()

    assert lines[0] == f"what answers at {url} is no aggregator; give its address with --url"
    assert lines[1] == "HTTP 500"
    assert lines[2] == lines[0]
    assert lines[3].startswith(f"no aggregator answers at {url} (Expected response header")


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("serve", "--nonsense"),
        ("health",),
        ("health", "x", "--fail-on", "sad"),
        ("tail", "--after", "-1"),
        ("tail", "--after", "x"),
    ],
)
def test_wrong_usage_exits_2(invoke: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)

    assert result.returncode == 2
    assert "--help" in result.stderr


def test_the_version_is_told(gradwatch: Command) -> None:
    assert gradwatch("--version").stdout == f"gradwatch {__version__}\n"


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


STAMP: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def test_a_cursor_from_the_future_is_one_line(
    invoke: Callable[..., Any], service: Aggregator
) -> None:
    """A slip: the stream itself would begin at the first event, as after another log."""
    result = invoke("tail", "--after", "99999", "--url", service.url)

    assert error(result).startswith("cursor 99999 was not given out yet, newest is ")


def test_tail_prints_alerts_a_line_each_until_interrupted(
    tail: Callable[..., Tail], service: Aggregator, peers: NewPeer
) -> None:
    peer = peers(service.ingest, run="tailed").attach()
    peer.steps(0, NAN, 1.0, 1.0, 1.0)
    process = tail("tailed", "--after", "0", "--url", service.url)
    first = process.lines(2)
    peer.steps(4, NAN)
    (third,) = process.lines(1)

    message = "NaN in the gradient of a at step"
    assert re.fullmatch(
        rf"#\d+ {STAMP} tailed firing critical nonfinite: {message} 0 on rank 0\n", first[0]
    )
    assert first[1].endswith(
        "resolved critical nonfinite: " + message + " 0 on rank 0, over at step 3\n"
    )
    assert third.endswith(f"{message} 4 on rank 0\n")
    assert process.end() == (0, "")


def test_tail_waits_for_a_run_that_is_not_there_yet(
    tail: Callable[..., Tail], service: Aggregator, peers: NewPeer
) -> None:
    """S54: and says so once, for the name may be a slip."""
    process = tail("yet-to-come", "--after", "0", "--url", service.url)
    assert process.process.stderr is not None
    assert process.process.stderr.readline() == "gradwatch: no run 'yet-to-come' yet\n"
    other, peer = (peers(service.ingest, run=own).attach() for own in ("not-it", "yet-to-come"))
    other.steps(0, NAN)
    peer.steps(0, NAN)

    assert " yet-to-come firing critical nonfinite: " in process.lines(1)[0]
    assert process.end() == (0, "")


def test_tail_lists_the_past_and_stops(
    gradwatch: Command, service: Aggregator, peers: NewPeer
) -> None:
    """S54: all that is kept, or what came after a cursor; of a run without any nothing."""
    peer = peers(service.ingest, run="of-the-past").attach()
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
    serve: Serve, peers: NewPeer, caplog: pytest.LogCaptureFixture
) -> None:
    service = serve()
    peer = peers(service.ingest).attach()
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
def test_tail_into_a_closed_pipe_ends_quietly(service: Aggregator, peers: NewPeer) -> None:
    """`gradwatch tail | head -1`, with more to say than the pipe holds."""
    peers(service.ingest, run="piped").attach().steps(0, *[NAN, 1.0, 1.0, 1.0] * 80)
    command = f"{GRADWATCH} tail --json --after 0 --url {service.url} | head -n 1"
    result = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )

    assert json.loads(result.stdout)["cursor"] == 1
    assert result.stderr == ""
