"""Data directories of every schema there was, opened by today's aggregator as a process.

`golden/README.md` says how they were made. What the aggregator of that time answered is in them.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradwatch_server.storage.sqlite.schema import SCHEMA_VERSION
from tests.support.aggregator import Aggregator
from tests.support.command import run_command
from tests.support.machine import REPOSITORY
from tests.support.peer import NewPeer

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent / "golden"
SCHEMAS = sorted(int(path.name[7:-7]) for path in GOLDEN.glob("schema_*.tar.xz"))
WITHOUT_CURVES = (2, 3)
"""Schemas whose runs come without the curves of what was recorded then (docs/upgrading.md)."""

FOR_EVER = {
    f"GRADWATCH_{name}_MAX_AGE_S": "1e12"  # they grow old, and tests are to run for years
    for name in ("LOG", "ALERTS", "RUNS")
}


def unpack(schema: int, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a copy of the data directory of a schema, and what was answered at that time."""
    with tarfile.open(GOLDEN / f"schema_{schema}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    answers: dict[str, Any] = json.loads((folder / "answers.json").read_text("utf-8"))
    return folder / "data", answers


def schema_of(directory: Path) -> int:
    with contextlib.closing(sqlite3.connect(directory / "gradwatch.db")) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
    return int(version)


def rows_of(directory: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(directory / "gradwatch.db")) as database:
        return list(database.iterdump())


class Upgraded:
    """Today's aggregator in a directory of another day, and what was answered then."""

    def __init__(self, schema: int, folder: Path) -> None:
        self.schema = schema
        self.directory, self.answers = unpack(schema, folder)
        assert schema_of(self.directory) == schema
        self.aggregator = Aggregator(self.directory, **FOR_EVER)
        self.aggregator.start()


@pytest.fixture(scope="module", params=SCHEMAS)
def upgraded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Upgraded]:
    """One for each schema; the last test of each adds a run."""
    made = Upgraded(request.param, tmp_path_factory.mktemp(f"schema_{request.param}"))
    yield made
    made.aggregator.close()


def test_there_is_a_directory_of_every_schema_before_this_one() -> None:
    """If not: `golden/README.md` says how the last commit before the change makes one."""
    assert SCHEMAS[: SCHEMA_VERSION - 1] == list(range(1, SCHEMA_VERSION))


def test_the_page_on_upgrading_has_every_schema() -> None:
    """And what is still there of its data."""
    page = (REPOSITORY / "docs" / "upgrading.md").read_text("utf-8")
    rows = re.findall(r"^\| ([1-9]\d*) \|", page, re.MULTILINE)

    assert [int(row) for row in rows] == list(range(1, SCHEMA_VERSION + 1))


def test_runs_and_their_records_are_as_they_were(upgraded: Upgraded) -> None:
    """All were stored, none was lost."""
    runs = upgraded.aggregator.json("/runs")

    assert {run["run"]: run["records"]["stored"] for run in runs} == upgraded.answers["runs"]
    assert [run["records"]["lost"] for run in runs] == [0, 0]
    assert {run["run"]: run["step"] for run in runs} == {"gpt": 39, "ended": 5}


def test_alert_events_have_the_cursors_and_ids_of_then(upgraded: Upgraded) -> None:
    """A subscriber goes on where it was, and a link to an alert still leads to it."""
    keys = ("cursor", "id", "rule", "state", "first_step")
    events = [[event[key] for key in keys] for event in upgraded.aggregator.json("/alerts")]

    assert events == upgraded.answers["alerts"]
    assert upgraded.aggregator.json(f"/alerts/{events[0][1]}")["rule"] == "nonfinite"


def test_curves_are_there_where_they_can_be(upgraded: Upgraded) -> None:
    """Schema 4 has them, 1 is read anew from its log; 2 and 3 have what they saved instead."""
    curve = upgraded.aggregator.json("/runs/gpt/series")
    norms = next(each["max"] for each in curve["series"] if each["column"] == "norm")
    is_there = upgraded.schema not in WITHOUT_CURVES

    assert curve["step"] == (list(range(40)) if is_there else [])
    bad = [step for step, norm in enumerate(norms) if not isinstance(norm, float)]
    assert bad == ([25] if is_there else [])


def test_the_directory_has_todays_schema_and_goes_on(upgraded: Upgraded, peers: NewPeer) -> None:
    """A new attempt of an old run; what was changed is said in the log."""
    aggregator = upgraded.aggregator
    peer = peers(aggregator.ingest).attach()
    peer.steps(0, 1.0, 2.0)
    aggregator.shows(peer)

    assert aggregator.health("gpt")["attempt"] == 2
    assert schema_of(upgraded.directory) == SCHEMA_VERSION
    brought = f"from schema version {upgraded.schema} to {SCHEMA_VERSION}"
    assert (brought in aggregator.errors) == (upgraded.schema < SCHEMA_VERSION)


def test_a_directory_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """In one line that says what to do; not a row of it is touched."""
    directory, _ = unpack(SCHEMAS[-1], tmp_path)
    with contextlib.closing(sqlite3.connect(directory / "gradwatch.db")) as database:
        database.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    before = rows_of(directory)

    ports = ("--http", "127.0.0.1:0", "--ingest", "tcp://127.0.0.1:0")
    done = run_command(tmp_path, "serve", "--data", str(directory), *ports)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert f"schema version {SCHEMA_VERSION + 1}, this gradwatch reads up to" in done.stderr
    assert "use the gradwatch that wrote it, or another directory with --data" in done.stderr
    assert schema_of(directory) == SCHEMA_VERSION + 1
    assert rows_of(directory) == before
