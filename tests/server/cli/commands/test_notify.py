"""`gradwatch notify`: a test message to each target, and how each is."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradwatch_server.cli.app import app
from tests.support.aggregator import Aggregator
from tests.support.command import Command, run_command
from tests.support.receiver import SECRET, Receiver
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def gradwatch(tmp_path: Path) -> Command:
    return partial(run_command, tmp_path)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def test_each_target_gets_a_test_and_a_line(
    gradwatch: Command, receiver: Receiver, tmp_path: Path
) -> None:
    """Exit 1 when one failed; the reason has no secret. One target can be asked for."""
    file = tmp_path / "gradwatch.toml"
    file.write_text(
        f'public_url = "http://gw.corp/"\n[notify.right]\nurl = "{receiver.url}"\n'
        f'[notify.gone]\nurl = "json://127.0.0.1:9/{SECRET}"\n'
        '[notify.unset]\nurl_env = "NO_SUCH_VARIABLE"\n'
    )
    result = gradwatch("notify", "test", "--config", str(file))

    assert result.returncode == 1
    right, gone, unset = result.stdout.splitlines()
    assert right == "right: ok"
    assert gone.startswith("gone: failed: A Connection error occurred")
    assert unset.startswith("unset: failed: setting 'notify.unset.url_env': the environment vari")
    assert SECRET not in result.stdout + result.stderr
    assert receiver.titles == ["gradwatch: a test"]
    assert "http://gw.corp/" in receiver.text

    one = CliRunner().invoke(app, ["notify", "test", "right", "--config", str(file)])
    assert (one.exit_code, one.stdout) == (0, "right: ok\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there are no targets; set one as [notify.NAME] in gradwatch.toml"),
        ('[notify.oncall]\nurl = "json://x"\n', "no target 'nobody'; there are oncall"),
        ("[notify.oncall]\n", "setting 'notify.oncall': should have one of url, url_env and"),
    ],
)
def test_what_cannot_be_tested_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "gradwatch.toml"
    file.write_text(text)
    result = CliRunner().invoke(app, ["notify", "test", "nobody", "--config", str(file)])

    assert result.exit_code == 1
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_the_extra_the_line_to_install_it_is_named(
    gradwatch: Command, tmp_path: Path
) -> None:
    """Python finds a module before the library that cannot be imported."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "apprise.py").write_text(
        'raise ModuleNotFoundError("No module", name="apprise")\n'
    )
    (tmp_path / "gradwatch.toml").write_text('[notify.oncall]\nurl = "json://x"\n')
    path = ":".join((str(tmp_path / "hidden"), *filter(None, sys.path)))
    result = gradwatch(
        "notify", "test", "--config", str(tmp_path / "gradwatch.toml"), PYTHONPATH=path
    )

    assert "oncall: failed: " in result.stdout
    assert "pip install 'gradwatch[notify]'" in result.stdout


def test_the_targets_of_an_aggregator_are_listed(
    receiver: Receiver, serve: Callable[..., Aggregator], tmp_path: Path
) -> None:
    receiver.status = 404
    table = f'url = "{receiver.url}"\ngroup_wait_s = 0\n'
    (tmp_path / "gradwatch.toml").write_text(f"[notify.oncall]\n{table}")
    service = serve("--config", str(tmp_path / "gradwatch.toml"))

    def listed(*options: str) -> str:
        command = ["notify", "list", "--url", service.url, *options]
        return CliRunner().invoke(app, command, env={"COLUMNS": "40"}).stdout

    assert listed() == "oncall (apprise): 0 wait, 0 delivered, up to event 0\n"
    service.peer().attach().steps(1, float("nan"))
    wait_until(lambda: "given up" in listed(), "it is refused")

    line, error = listed().splitlines()
    assert re.match(r"oncall \(apprise\): 0 wait, 0 delivered, [0-9]+ given up, up to ev", line)
    (item,) = map(json.loads, listed("--json").splitlines())
    assert item["name"] == "oncall"
    assert re.fullmatch(r"    failed (once|\d+ times) in a row: .*404.*", error)
    assert error.endswith(item["error"])
