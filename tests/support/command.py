"""The `gradwatch` command as a process that runs to its end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tests.support.aggregator import GRADWATCH
from tests.support.waiting import PATIENCE_S

Command: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]
"""What the fixtures give: `gradwatch("health", "x", GRADWATCH_URL="...")`."""


def run_command(
    directory: Path, *arguments: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a directory; it may fail, but not with a traceback."""
    result = subprocess.run(
        [GRADWATCH, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=directory,
        env=os.environ | {"COLUMNS": "200"} | environ,
    )
    assert "Traceback" not in result.stderr, result.stderr
    return result
