"""Start of the commands: each imports what it needs, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gradwatch_server.cli.app import load
from gradwatch_server.cli.commands import COMMANDS

SCRIPT = """
import json, sys
from gradwatch_server.__main__ import main
try:
    main()
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""

ASKS = {"httpx", "rich", "typer"}
"""Packages that a command needs that asks an aggregator."""

HEAVY = {"apprise", "fastapi", "msgspec", "numpy", "prometheus_client", "starlette", "uvicorn"}
"""Packages of the aggregator itself; each takes 50 ms and more."""


def imported(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_the_version_is_printed_without_typer() -> None:
    assert imported("--version").isdisjoint(ASKS | HEAVY)


@pytest.mark.parametrize("command", ["health gpt", "runs", "alerts"])
def test_a_command_that_asks_imports_nothing_of_the_aggregator(command: str) -> None:
    found = imported(*command.split(), "--url", "http://127.0.0.1:9")

    assert found >= ASKS
    assert found.isdisjoint(HEAVY)
    assert "gradwatch_server.settings" not in found


def test_help_imports_no_command() -> None:
    found = imported("--help")

    assert not [name for name in found if name.startswith("gradwatch_server.cli.commands.")]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_all_has_the_first_line_of_each(name: str) -> None:
    assert load(name).help.partition("\n\n")[0] == COMMANDS[name]
