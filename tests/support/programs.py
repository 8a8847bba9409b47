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
    found = shutil.which(name, path=":".join(_places()))
    if found is None:
        why = f"no {name}: apt-get install {package}"
        if REQUIRED:
            pytest.fail(why)
        pytest.skip(why)
    return found


def _places() -> list[str]:
    """Return the folders of PATH, and those beside them in which Debian has services.

    `/usr/sbin` is on the PATH of root alone, `/usr/lib/postgresql/VERSION/bin` on none.
    """
    folders = os.environ.get("PATH", "").split(":")
    beside = [Path(folder).parent for folder in folders if folder.endswith("/bin")]
    services = [str(parent / "sbin") for parent in beside]
    newest_first = (sorted(parent.glob("lib/postgresql/*/bin"), reverse=True) for parent in beside)
    return [*folders, *services, *(str(each) for found in newest_first for each in found)]
