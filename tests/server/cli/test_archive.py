"""A run as one file, and a colleague's aggregator that shows it: real processes on both sides."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from gradwatch_server.cli.app import app
from gradwatch_server.clock import Clock
from gradwatch_server.core.state import State
from gradwatch_server.storage.archive_frames import (
    MAGIC,
    VERSION,
    FrameKind,
    encode_frame,
    read_frames,
)
from gradwatch_server.storage.checkpoints import load_checkpoint
from gradwatch_server.storage.retention import long_ended
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_wire import Bye
from tests.page.feeding import POISONED, feed
from tests.support.aggregator import Aggregator
from tests.support.peer import Peer
from tests.support.records import stats_of
from tests.support.waiting import wait_until

RUN = "to-send"
CHANGING = ("boot", "now", "revision", "last_seen_s", "imported_at", "cursor")
"""What is another one for each aggregator, or at each moment."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aggregator]:
    """An aggregator with a run of two attempts, of which one failed, and with another run."""
    directory = tmp_path_factory.mktemp("source") / "data"
    made = Aggregator(directory, GRADWATCH_CHECKPOINT_S="1", GRADWATCH_SESSION_TIMEOUT_S="900")
    peers: list[Peer] = []

    def connect(endpoint: str, **settings: Any) -> Peer:
        peers.append(Peer(endpoint, **settings))
        return peers[-1]

    try:
        made.start()
        _feed(made, connect)
        yield made
    finally:
        for peer in peers:
            peer.close()
        made.close()


def _feed(made: Aggregator, connect: Callable[..., Peer]) -> None:
    first = feed(made, connect, RUN)
    first.send(Bye(reason="exception: it broke"))
    first.acked()
    made.health_of_ended(RUN)
    second = connect(made.ingest, run=RUN).attach(("a", "b"))
    for step in range(200):
        second.send(stats_of(step, (1.0 + step, math.inf if step == 150 else 1.0), loss=1.0))
    feed(made, connect, "stays-here", steps=range(3))
    second.send(Bye(reason="done"))
    second.acked()
    made.health_of_ended(RUN)
    made.stop()  # of an attempt that was retired it shows more until it is started anew
    made.start()


@pytest.fixture(scope="module")
def archive(source: Aggregator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the run."""
    place = tmp_path_factory.mktemp("archive") / "sent.gradwatch"
    arguments = ("export", RUN, "--to", "archive", "--url", source.url, "--out", str(place))
    result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == 0, result.output
    return place


def take_in(file: Path, data: Path, *arguments: str) -> Any:
    """Run `gradwatch import`."""
    return CliRunner().invoke(app, ["import", str(file), "--data", str(data), *arguments])


def told(result: Any) -> str:
    """Return the one line of an error."""
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    return str(line)


def steady(answer: Any) -> Any:
    """Return an answer without what is another one for each aggregator."""
    if isinstance(answer, dict):
        return {key: steady(own) for key, own in answer.items() if key not in CHANGING}
    return [steady(own) for own in answer] if isinstance(answer, list) else answer


def frames_of(file: Path) -> list[tuple[FrameKind, list[Any]]]:
    """Return the frames of an archive."""
    body = io.BytesIO(file.read_bytes()[len(MAGIC) :])
    return [(kind, fields) for kind, fields, _ in read_frames(body, 1 << 40)]


def of_run(file: Path) -> list[tuple[FrameKind, list[Any]]]:
    """Return the frames that are about the run alone: in the log time passes for all."""
    shared = (FrameKind.LOG, FrameKind.NEXT, FrameKind.END)
    return [(kind, fields) for kind, fields in frames_of(file) if kind not in shared]


def written(place: Path, frames: list[tuple[FrameKind, list[Any]]]) -> Path:
    """Write an archive of these frames."""
    place.write_bytes(MAGIC + b"".join(encode_frame(kind, *own) for kind, own in frames))
    return place


@pytest.mark.slow
def test_a_colleague_sees_the_same(source: Aggregator, archive: Path, tmp_path: Path) -> None:
    """Health, alerts with their ids, curves, frames with what each rank sent, of both attempts."""
    data = tmp_path / "theirs" / "data"
    data.parent.mkdir()
    assert take_in(archive, data).exit_code == 0
    theirs = Aggregator(data)
    try:
        theirs.start()
        paths = ["", "/health", "/alerts", "/ranks", "/layers", "/series?column=norm&column=loss"]
        paths += ["/health?attempt=1", f"/series?attempt=1&layer={POISONED}"]
        paths += ["/frames/150", "/frames/37?attempt=1", "/heatmap?attempt=1", "/series?layer=b"]
        for path in paths:
            here, there = (own.get(f"/runs/{RUN}{path}") for own in (source, theirs))
            assert here.status_code == there.status_code
            assert steady(there.json()) == steady(here.json()), path
        assert [own["run"] for own in theirs.json("/runs")] == [RUN]
        assert theirs.json(f"/runs/{RUN}")["imported_at"] is not None
        assert source.json(f"/runs/{RUN}")["imported_at"] is None
        events = [steady(own) for own in theirs.json("/alerts?after=0")]
        assert events == [steady(own) for own in source.json(f"/alerts?after=0&run={RUN}")]
        assert theirs.stop() == 0
        theirs.start()  # and after a restart it is still there
        assert theirs.json(f"/runs/{RUN}")["imported_at"] is not None
        assert "Traceback" not in theirs.errors
        assert "WARNING" not in theirs.errors
    finally:
        theirs.close()


def test_an_old_run_is_kept_from_its_import_on(archive: Path, tmp_path: Path) -> None:
    """Else the aggregator would forget at once what ended a month ago."""
    assert take_in(archive, tmp_path / "data").exit_code == 0
    store = SQLiteStore.open(tmp_path / "data", Clock())
    try:
        state = State()
        state.runs = load_checkpoint(store.state, state.window_steps).runs
        later_ns = Clock().now_ns() + 31 * 86_400 * 10**9
        assert [own.run for own in long_ended(state, {}, later_ns, 30 * 86_400.0)] == [RUN]
        (entry,) = [entry for _, entry in store.log.entries(store.log.last_offset - 1)]
        state.apply(entry)
        assert not list(long_ended(state, {}, later_ns - 2 * 86_400 * 10**9, 30 * 86_400.0))
        assert [own.run for own in long_ended(state, {}, later_ns, 30 * 86_400.0)] == [RUN]
    finally:
        store.close()


def test_an_archive_has_nothing_of_other_runs(archive: Path) -> None:
    """Neither their names nor their records."""
    frames = frames_of(archive)

    assert frames[0][0] is FrameKind.MANIFEST
    assert frames[0][1][0]["version"] == VERSION
    assert frames[-1][0] is FrameKind.END
    assert b"stays-here" not in b"".join(encode(own) for _, own in frames)
    assert b"transformer" in b"".join(encode(own) for _, own in frames)


def encode(fields: list[Any]) -> bytes:
    """Return the bytes of a frame that has texts as they are."""
    return repr(fields).encode()


def test_one_that_was_interrupted_goes_on_to_the_same_end(
    source: Aggregator, archive: Path, tmp_path: Path
) -> None:
    """Cut off anywhere: what is there and whole is not asked for again."""
    whole = archive.read_bytes()
    part = tmp_path / "again.gradwatch.part"
    out = str(tmp_path / "again.gradwatch")
    arguments = ["export", RUN, "--to", "archive", "--url", source.url, "--out", out]
    for length in (0, 5, len(MAGIC), len(MAGIC) + 3, len(whole) // 2, len(whole) - 1):
        part.write_bytes(whole[:length])
        assert "go on with --resume" in told(CliRunner().invoke(app, arguments))
        assert CliRunner().invoke(app, [*arguments, "--resume"]).exit_code == 0
        assert of_run(Path(out)) == of_run(archive)
        assert not part.exists()
        assert "is there already" in told(CliRunner().invoke(app, arguments))
        Path(out).unlink()


def test_a_file_of_another_kind_is_not_gone_on_with(source: Aggregator, tmp_path: Path) -> None:
    """Nor is it cut off."""
    part = tmp_path / "own.gradwatch.part"
    part.write_bytes(b"somebody's own")
    out = str(tmp_path / "own.gradwatch")
    arguments = ["export", RUN, "--to", "archive", "--url", source.url, "--out", out, "--resume"]

    assert "is no archive of gradwatch" in told(CliRunner().invoke(app, arguments))
    assert part.read_bytes() == b"somebody's own"


def test_a_live_run_is_refused(source: Aggregator, tmp_path: Path) -> None:
    """And one that nobody knows; nothing is left behind."""
    for run, why in (("stays-here", "is live"), ("nobody", "no run 'nobody'")):
        out = tmp_path / f"{run}.gradwatch"
        result = CliRunner().invoke(
            app, ["export", run, "--to", "archive", "--url", source.url, "--out", str(out)]
        )
        assert why in told(result)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_one_whose_end_is_not_saved_yet_is_not_called_live(
    source: Aggregator, peers: Callable[..., Peer]
) -> None:
    """What was saved while it lived says nothing of now."""
    peer = peers(source.ingest, run="over").attach()
    peer.steps(0, 1.0)
    time.sleep(3.0)  # for at least one save
    assert source.get("/runs/over/archive").status_code == httpx.codes.CONFLICT
    peer.send(Bye(reason="done"))
    source.health_of_ended("over")

    answers: list[int] = []

    def is_there() -> bool:
        answers.append(source.get("/runs/over/archive").status_code)
        return answers[-1] == httpx.codes.OK

    wait_until(is_there)
    assert set(answers) <= {httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE}


def test_what_is_there_is_not_imported_over(archive: Path, tmp_path: Path) -> None:
    """Nor is what an import left that was killed."""
    (tmp_path / "data").mkdir()
    assert "is there already" in told(take_in(archive, tmp_path / "data"))
    (tmp_path / "new.part").mkdir()
    assert "delete it first" in told(take_in(archive, tmp_path / "new"))
    assert (tmp_path / "new.part").is_dir()


def test_a_bad_archive_is_refused_in_one_line(archive: Path, tmp_path: Path) -> None:
    """Damaged, cut off, of a newer version, of another kind, too large: no directory is made."""
    whole = archive.read_bytes()
    middle = len(whole) // 2
    damaged = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    bomb = MAGIC + encode_frame(FrameKind.RUN, b"\0" * (1 << 20))
    cases = {
        "no archive of gradwatch": b"PK\3\4" + whole,
        "damaged": damaged,
        "cut off": whole[:-1],
        "its end is missing": MAGIC + b"",
        "more than is allowed": bomb,
    }
    for why, body in cases.items():
        file = tmp_path / "bad"
        file.write_bytes(body)
        assert why in told(take_in(file, tmp_path / "data", "--max-bytes", "600000"))
        assert [own.name for own in tmp_path.iterdir()] == ["bad"]
    assert "No such file" in told(take_in(tmp_path / "nothing", tmp_path / "data"))


def test_a_hostile_archive_is_refused(archive: Path, tmp_path: Path) -> None:
    """Whole frames with checksums, whose contents are not what gradwatch writes."""
    frames = frames_of(archive)
    kinds = [kind for kind, _ in frames]
    facts = dict(frames[0][1][0])

    def changed(kind: FrameKind, *fields: Any) -> list[tuple[FrameKind, list[Any]]]:
        place = kinds.index(kind)
        return [*frames[:place], (kind, list(fields)), *frames[place + 1 :]]

    log = frames[kinds.index(FrameKind.LOG)][1][0]
    chunk = frames[kinds.index(FrameKind.CURVES)][1]
    cases = {
        "reads up to 1": changed(FrameKind.MANIFEST, facts | {"version": VERSION + 1}),
        "the name of the run": changed(FrameKind.MANIFEST, facts | {"run": "x" * 5_000}),
        "is not of run": changed(FrameKind.MANIFEST, facts | {"run": "../../etc"}),
        "cannot be read": changed(FrameKind.RUN, b"rubbish"),
        "comes after": changed(FrameKind.LOG, [log[0], log[0]]),
        "bytes are expected": changed(FrameKind.CURVES, chunk[0], chunk[1], 7, {}),
        "there is no attempt": changed(FrameKind.CURVES, 99, *chunk[1:]),
        "out of place": frames[1:],
        "frames were written": [*frames[:2], frames[-1]],
    }
    for why, own in cases.items():
        line = told(take_in(written(tmp_path / "bad", own), tmp_path / "data"))
        assert why in line, line
        assert [each.name for each in tmp_path.iterdir()] == ["bad"]


def test_a_cursor_that_is_none_is_refused(source: Aggregator) -> None:
    """As every wrong parameter is."""
    for wrong in ("x", "9-0-0-0", "1-2", "1--1-0-0", "0-0-0-99999999999999999999"):
        answer = source.get(f"/runs/{RUN}/archive", params={"cursor": wrong})
        assert answer.status_code == 422, wrong
        assert json.loads(answer.content)["detail"].startswith("query cursor")
