"""The `gradwatch` command, as a process and in this one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradwatch_server.cli.app import app
from tests.support.command import Command, Completed, run_command


@pytest.fixture
def gradwatch(tmp_path: Path) -> Command:
    """Run a command to its end in an empty folder: `gradwatch("health", "x", URL="...")`."""
    return partial(run_command, tmp_path)


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The same in this process, for variants: `invoke("health", "x")`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Completed:
        result = CliRunner().invoke(app, arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return Completed(arguments, result.exit_code, result.stdout, result.stderr)

    return run
