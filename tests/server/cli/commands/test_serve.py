"""`gradwatch serve` as a process: what it announces, settings, signals, errors in one line."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Final

import pytest

from gradwatch_server.storage.sqlite.store import DATABASE_NAME
from tests.support.aggregator import GRADWATCH, Aggregator, Serve
from tests.support.command import Command, error
from tests.support.waiting import PATIENCE_S, wait_until

ANY_PORTS = ("--http", "127.0.0.1:0", "--ingest", "tcp://127.0.0.1:0")
FULL_DISK: Final = """
mount -t tmpfs -o size={size},mode=700 tmpfs data || exit 77
[ {filled} = no ] || cat /dev/zero > data/filled 2> /dev/null
exec "$0" serve --data data "$@"
"""


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


def test_help_shows_no_default_where_there_is_none(invoke: Command) -> None:
    """S54: no `[default: ()]`."""
    shown = invoke("serve", "--help").stdout

    assert "[default: (127.0.0.1:8420)]" in shown
    assert "()" not in shown


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
def test_settings_reach_the_service(serve: Serve, tmp_path: Path, named_by: str) -> None:
    config = tmp_path / "strict.toml"
    config.write_text("[rules.exploding]\nlimit = 2\nfor_steps = 1\n")
    if named_by == "--config":
        service = serve("--config", str(config))
    else:
        service = serve(GRADWATCH_CONFIG=str(config))
    service.peer().attach().steps(0, 3.0)
    (alert,) = wait_until(lambda: service.json("/alerts"))

    assert (alert["rule"], alert["origin"]["threshold"]) == ("exploding", 2.0)
    service.send(signal.SIGHUP)
    wait_until(lambda: "the rules are those in force already" in service.errors)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(serve: Serve, number: int) -> None:
    """Exit code 0, with a rank attached; the log is checkpointed and closed."""
    service = serve()
    service.peer().attach().steps(0, 1.0)

    assert service.stop(number) == 0
    assert "Traceback" not in service.errors
    assert not (service.directory / f"{DATABASE_NAME}-wal").exists()
