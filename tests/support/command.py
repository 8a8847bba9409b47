"""The `gradwatch` command as a process that runs to its end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tests.support.aggregator import GRADWATCH
from tests.support.forking import SERVER, run_forked
from tests.support.waiting import PATIENCE_S

Completed = subprocess.CompletedProcess[str]

Command: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]
"""What the fixtures give: `gradwatch("health", "x", GRADWATCH_URL="...")`."""


def run_command(
    directory: Path, *arguments: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a directory; it may fail, but not with a traceback."""
    variables = os.environ | {"COLUMNS": "200"} | environ
    if "PYTHONPATH" in environ:  # a fork has imported its modules already
        result = subprocess.run(
            [GRADWATCH, *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            cwd=directory,
            env=variables,
        )
    else:
        result = run_forked(
            [GRADWATCH, *arguments],
            SERVER,
            timeout_s=PATIENCE_S,
            directory=directory,
            environ=variables,
        )
    assert "Traceback" not in result.stderr, result.stderr
    return result


def error(result: Completed) -> str:
    """Return the one line that a failed command says."""
    assert result.returncode == 1
    *before, line = result.stderr.splitlines()
    assert all(" INFO " in other for other in before), result.stderr
    assert line.startswith("gradwatch: ")
    return line.removeprefix("gradwatch: ")
