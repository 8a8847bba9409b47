"""Programs of others that tests run: Prometheus, Alertmanager, systemd and the like.

`GRADWATCH_PROGRAMS=required` lets a test fail where one is missing instead of leaving it out: CI
says so.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

REQUIRED: Final = os.environ.get("GRADWATCH_PROGRAMS") == "required"


def program(name: str, package: str) -> str:
    """Return the path of a program; leave the test out where there is none.

    Args:
        name: The command, for example `promtool`.
        package: The Debian package that has it.
    """
    # Debian puts some services where only root's PATH looks, and PostgreSQL where none does.
    newest_first = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places = [os.environ.get("PATH", ""), "/usr/sbin", "/sbin", *map(str, newest_first)]
    found = shutil.which(name, path=":".join(places))
    if found is None:
        why = f"no {name}: apt-get install {package}"
        if REQUIRED:
            pytest.fail(why)
        pytest.skip(why)
    return found
