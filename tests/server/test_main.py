"""The `gradwatch` command where its extra is not installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gradwatch_server
import gradwatch_wire
from gradwatch_wire import Event, Hello, encode_body
from gradwatch_wire.session.send_buffer import BufferedRecord
from gradwatch_wire.session.spill_format import pack_header, pack_record
from gradwatch_wire.session.spilled_session import segment_name, stem_of
from tests.support.aggregator import Aggregator
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PACKAGE = Path(gradwatch_server.__file__).parent
SHARED = Path(gradwatch_wire.__file__).parents[1]

# Makes the modules named in the first argument impossible to import, as if not installed.
RUN_WITHOUT = """
import sys

MISSING = sys.argv[1].split(",")

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from gradwatch_server.__main__ import main
sys.argv[1:] = sys.argv[2:]
main()
"""


def _python(server: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(server), str(SHARED)])
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _run(missing: str, server: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _python(server, "-c", RUN_WITHOUT, missing, *arguments)


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A folder with a server of one function, which needs `typer` and says that it ran."""
    cli = tmp_path / "gradwatch_server" / "cli"
    cli.mkdir(parents=True)
    shutil.copy(PACKAGE / "__main__.py", cli.parent)
    for package in (cli.parent, cli):
        (package / "__init__.py").write_text("")
    (cli / "app.py").write_text("import typer.main\ndef app() -> None:\n    print('ran')\n")
    return tmp_path


def test_the_command_names_the_missing_extra() -> None:
    result = _run("typer", PACKAGE.parent)

    assert result.stderr == (
        "gradwatch: the command needs typer, which is not installed; "
        "run: pip install 'gradwatch[server]'\n"
    )
    assert (result.returncode, result.stdout) == (1, "")


SERVER_EXTRA = ",".join(
    re.match(r"[\w-]+", needed)[0].replace("-", "_")  # type: ignore[index]  # it begins with a name
    for needed in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]["server"]
)
"""What `pip install 'gradwatch[client]'` does not bring."""


@pytest.mark.slow
def test_the_version_is_told_without_the_server() -> None:
    result = _run(SERVER_EXTRA, PACKAGE.parent, "--version")

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"gradwatch {gradwatch_wire.__version__}\n"


@pytest.mark.slow
def test_the_help_says_what_there_is_without_the_server() -> None:
    result = _run(SERVER_EXTRA, PACKAGE.parent, "--help")

    assert (result.returncode, result.stderr) == (0, "")
    assert "replay" in result.stdout
    assert "All other commands need the aggregator: pip install 'gradwatch[server]'" in " ".join(
        result.stdout.split()
    )


def test_other_commands_name_the_extra() -> None:
    result = _run(SERVER_EXTRA, PACKAGE.parent, "health", "r")

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.endswith("run: pip install 'gradwatch[server]'\n")


@pytest.mark.slow
def test_what_a_killed_worker_left_is_sent_without_the_server(
    tmp_path: Path, service: Aggregator
) -> None:
    session = os.urandom(16)
    path = tmp_path / segment_name(stem_of("left", 0, session), 0)
    kind, body = encode_body(Event(name="mark", step=3))
    header = pack_header(session, Hello(run="left", rank=0, world=1))
    path.write_bytes(header + pack_record(BufferedRecord(1, kind, 0, body)))
    asked = ("replay", str(path), "--endpoint", service.ingest)
    result = _run(SERVER_EXTRA, PACKAGE.parent, *asked)

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "left rank 0: 1 records sent, all stored\n"
    wait_until(lambda: service.health("left")["records"]["stored"] == 1, "the record is shown")

    result = _run(SERVER_EXTRA, PACKAGE.parent, "replay", str(tmp_path / "nothing"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("gradwatch: cannot read")
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_way_to_the_aggregator_is_looked_at_without_the_server(service: Aggregator) -> None:
    asked = ("doctor", "--endpoint", service.ingest, "--url", service.url)
    result = _run(SERVER_EXTRA, PACKAGE.parent, *asked)
    assert (result.returncode, result.stderr) == (0, "")
    assert "ok       protocol  the aggregator answers" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("nothing is wrong")

    nowhere = ("doctor", "--endpoint", "ipc:///nowhere", "--json")
    result = _run(SERVER_EXTRA, PACKAGE.parent, *nowhere)
    assert (result.returncode, result.stderr) == (1, "")
    found = json.loads(result.stdout)
    assert found["status"] == "error"
    assert {check["side"] for check in found["checks"]} == {"client"}

    assert _run(SERVER_EXTRA, PACKAGE.parent, "doctor", "--data", "x").returncode == 2


def test_a_missing_package_is_named_whatever_the_server_is(stand_in: Path) -> None:
    """The package that is missing is named, not the submodule that was asked for."""
    result = _run("typer", stand_in)

    assert result.returncode == 1
    assert result.stderr.startswith("gradwatch: the command needs typer")
    assert result.stderr.endswith("run: pip install 'gradwatch[server]'\n")
    assert result.stderr.count("\n") == 1


def test_the_command_starts_where_nothing_is_missing(stand_in: Path) -> None:
    (stand_in / "typer").mkdir()
    (stand_in / "typer" / "main.py").write_text("")
    result = _run("nothing", stand_in)

    assert (result.returncode, result.stdout, result.stderr) == (0, "ran\n", "")


def test_a_part_of_gradwatch_that_is_missing_is_not_blamed_on_an_extra(stand_in: Path) -> None:
    """A broken installation shows its traceback: no extra would mend it."""
    (stand_in / "gradwatch_server" / "cli" / "app.py").unlink()
    result = _run("nothing", stand_in)

    assert result.returncode == 1
    assert "pip install" not in result.stderr
    assert "ModuleNotFoundError: No module named 'gradwatch_server.cli.app'" in result.stderr


@pytest.mark.slow
def test_the_package_runs_as_a_module() -> None:
    """`python -m gradwatch_server` is the command."""
    result = _python(PACKAGE.parent, "-m", "gradwatch_server", "--version")

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"gradwatch {gradwatch_wire.__version__}\n"
