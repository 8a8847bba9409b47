"""`gradwatch replay`: spill files into a real aggregator, and what it says where it cannot."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradwatch_server.cli import replay as replay_module
from gradwatch_server.cli.app import app
from gradwatch_wire import Bye, Column, Hello, Manifest, Record, Stats, encode_body
from gradwatch_wire.session.send_buffer import BufferedRecord
from gradwatch_wire.session.session_lock import SessionLock
from gradwatch_wire.session.spill_format import pack_header, pack_record
from gradwatch_wire.session.spilled_session import segment_name, stem_of
from tests.support.aggregator import Aggregator
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def spilled(tmp_path: Path) -> Callable[..., Path]:
    """Write the file of a killed worker: `spilled("run", 100, missing=(3, 4))`."""

    def write(run: str, steps: int, rank: int = 0, missing: tuple[int, ...] = ()) -> Path:
        hello = Hello(run=run, rank=rank, world=2)
        session = f"{run}{rank}".encode().ljust(16, b"-")[:16]
        path = tmp_path / "spill" / segment_name(stem_of(run, rank, session), 0)
        path.parent.mkdir(exist_ok=True)
        manifest = Manifest(
            manifest_id=1, names=("a",), numel=Column.pack("<u8", [1]), dtypes=("float32",)
        )
        columns = {"l2": Column.pack("<f8", [1.0])}
        stats = (Stats(manifest_id=1, step=step, columns=columns) for step in range(steps))
        records: list[Record] = [manifest, *stats, Bye()]
        frames = [
            pack_record(BufferedRecord(seq, kind, 0, body))
            for seq, (kind, body) in enumerate(map(encode_body, records), 1)
            if seq not in missing
        ]
        path.write_bytes(pack_header(session, hello) + b"".join(frames))
        return path

    return write


def replay(*arguments: object) -> subprocess.CompletedProcess[str]:
    result = CliRunner().invoke(app, ["replay", *map(str, arguments)])
    return subprocess.CompletedProcess([], result.exit_code, result.stdout, result.stderr)


def refusal(*arguments: object) -> str:
    """Run what has to fail; return the line it says."""
    result = replay(*arguments)
    assert result.returncode == 1, result.stdout
    assert result.stderr.startswith("gradwatch: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_a_directory_is_replayed_session_by_session(
    service: Aggregator, spilled: Callable[..., Path]
) -> None:
    spilled("two", 600)
    path = spilled("two", 600, rank=1, missing=(10, 11, 500))
    told = replay(path.parent, "--endpoint", service.ingest)
    wait_until(lambda: service.json("/runs/two/health")["phase"] == "ended")
    report = service.json("/runs/two/ranks")

    assert told.stdout.splitlines() == [
        "two rank 0: 602 records sent, all stored",
        "two rank 1: 599 records sent, all stored",
    ]
    assert report["records"]["stored"] == 1201
    assert report["records"]["lost"] == 3
    assert [(gap["first"], gap["last"]) for gap in report["ranks"][1]["gaps"]] == [
        *((10, 11), (500, 500))
    ]
    assert path.exists()


def test_replayed_twice_nothing_is_doubled_and_remove_clears_up(
    service: Aggregator, spilled: Callable[..., Path]
) -> None:
    path = spilled("again", 5)
    replay(path, "--endpoint", service.ingest)
    told = replay(path, "--endpoint", service.ingest, "--remove")

    assert told.stdout == "again rank 0: 0 records sent, all stored\n"
    assert list(path.parent.iterdir()) == []
    wait_until(lambda: service.json("/runs/again/health")["records"]["stored"] >= 7)
    assert service.json("/runs/again/health")["records"]["stored"] == 7


def test_a_foreign_file_is_refused_before_anything_is_sent(
    service: Aggregator, spilled: Callable[..., Path], tmp_path: Path
) -> None:
    foreign = tmp_path / "train.py"
    foreign.write_text("import torch\n")
    good = spilled("foreign", 5)

    assert "is no spill file" in refusal(good, foreign, "--endpoint", service.ingest)
    assert service.get("/runs/foreign").status_code == 404


def test_what_a_live_process_writes_is_refused(
    service: Aggregator, spilled: Callable[..., Path]
) -> None:
    """Across processes: it holds a lock, which ends with it."""
    path = spilled("live", 5)
    holder = (
        "import sys\nfrom pathlib import Path\n"
        "from gradwatch_wire.session.session_lock import SessionLock\n"
        "from gradwatch_wire.session.spilled_session import SpilledSession\n"
        "path = Path(sys.argv[1])\n"
        "lock = SessionLock.acquire(path.parent, SpilledSession.open(path).session)\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        words = refusal(path, "--endpoint", service.ingest)
        process.kill()
    after = replay(path, "--endpoint", service.ingest)

    assert "in use by a live process" in words
    assert after.returncode == 0


def test_no_aggregator_there_is_one_line_and_the_file_stays(
    spilled: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "SILENCE_S", 0.3)
    path = spilled("nobody", 5)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    words = refusal(path, "--endpoint", f"tcp://127.0.0.1:{port}", "--remove")
    lock = SessionLock.acquire(path.parent, b"nobody0".ljust(16, b"-"))

    assert "no aggregator answers at tcp://127.0.0.1:" in words
    assert path.exists()
    assert lock is not None
    lock.release(remove=True)


def test_a_session_that_is_refused_is_one_line(
    service: Aggregator, spilled: Callable[..., Path]
) -> None:
    path = spilled("a b", 1)

    assert "the aggregator refuses this session" in refusal(path, "--endpoint", service.ingest)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.spill",), "cannot read missing.spill: No such file or directory"),
        ((".", "--endpoint", "http://127.0.0.1:1"), "is not like tcp://127.0.0.1:5555"),
        ((".", "--endpoint", "tcp://a:1,tcp://b:2"), "one at a time, got 2: tcp://a:1, tcp://b:2;"),
        ((".",), "no spill files in this directory"),
        ((".", "--keys", "missing.key"), "key file missing.key: No such file"),
    ],
)
def test_wrong_arguments_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)

    assert words in refusal(*arguments)
