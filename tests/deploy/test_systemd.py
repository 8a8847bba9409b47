"""deploy/systemd: the unit is valid, and leaves the service little to do harm with."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.machine import REPOSITORY
from tests.support.programs import program

UNITS = REPOSITORY / "deploy" / "systemd"
MOST_EXPOSED = 1.5
"""Of 10, as systemd-analyze judges; a service without any of it has 9.6."""


@pytest.fixture(params=[False, True], ids=["alone", "with keys"])
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The unit, whose program is one that is there; also with the file for keys beside it."""
    text = (UNITS / "gradwatch.service").read_text("utf-8")
    assert "ExecStart=/opt/gradwatch/bin/gradwatch serve" in text
    path = tmp_path / "gradwatch.service"
    path.write_text(text.replace("/opt/gradwatch/bin/gradwatch", "/bin/true"))
    if request.param:
        (tmp_path / "gradwatch.service.d").mkdir()
        keys = (UNITS / "gradwatch-keys.conf").read_text("utf-8")
        (tmp_path / "gradwatch.service.d" / "keys.conf").write_text(keys)
    return path


def analyze(*arguments: str | Path) -> str:
    """Run systemd-analyze; it has to find nothing wrong."""
    analyzer = program("systemd-analyze", "systemd")
    done = subprocess.run([analyzer, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_systemd_takes_the_unit(unit: Path) -> None:
    """Without a warning: no word in it is unknown."""
    assert analyze("verify", unit) == ""


def test_the_unit_is_confined(unit: Path) -> None:
    """By systemd's own measure."""
    printed = analyze("security", "--offline=yes", unit)

    found = re.search(r"Overall exposure level for gradwatch.service: ([\d.]+)", printed)
    assert found is not None
    assert float(found[1]) <= MOST_EXPOSED, printed
