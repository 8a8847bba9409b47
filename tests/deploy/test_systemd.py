"""deploy/systemd: the unit is valid, and leaves the service little to do harm with."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.machine import REPOSITORY, run_in_machine
from tests.support.programs import program

UNIT = REPOSITORY / "deploy" / "systemd" / "gradwatch.service"
PAGE = (REPOSITORY / "docs" / "deployment.md").read_text("utf-8")
(DROP_IN,) = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
MOST_EXPOSED = 1.5
"""Of 10, as systemd-analyze judges; a service without any of it has 9.6."""


@pytest.fixture(params=[False, True], ids=["alone", "with keys"])
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The unit, whose program is one that is there; also with the drop-in for keys beside it."""
    text = UNIT.read_text("utf-8")
    assert "ExecStart=/opt/gradwatch/bin/gradwatch serve" in text
    path = tmp_path / "gradwatch.service"
    path.write_text(text.replace("/opt/gradwatch/bin/gradwatch", "/bin/true"))
    if request.param:
        (tmp_path / "gradwatch.service.d").mkdir()
        (tmp_path / "gradwatch.service.d" / "override.conf").write_text(DROP_IN)
    return path


def analyze(*arguments: str | Path) -> str:
    """Run systemd-analyze; it has to find nothing wrong."""
    analyzer = program("systemd-analyze", "systemd")
    done = subprocess.run([analyzer, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_systemd_takes_the_unit(unit: Path) -> None:
    assert analyze("verify", unit) == ""


def test_the_unit_is_confined(unit: Path) -> None:
    printed = analyze("security", "--offline=yes", unit)

    found = re.search(r"Overall exposure level for gradwatch.service: ([\d.]+)", printed)
    assert found is not None
    assert float(found[1]) <= MOST_EXPOSED, printed


BOOT = r"""
    # systemd needs a cgroup that is its own; it goes again with its last process.
    mkdir /mnt/cgroup
    mount -t cgroup2 cgroup2 /mnt/cgroup
    mine=/mnt/cgroup/gradwatch-$RANDOM$RANDOM
    mkdir $mine
    empty() { find $mine -depth -type d -exec rmdir {} + 2>/dev/null; }
    trap 'echo 0 >/mnt/cgroup/cgroup.procs; kill -KILL $! && wait $! || true; until_ok empty' EXIT
    echo 0 >$mine/cgroup.procs
    rm -f /etc/systemd/system/*.wants/*  # nothing else is to be started
    cp /opt/gradwatch/source/deploy/systemd/gradwatch.service /etc/systemd/system/
    container=other unshare --cgroup --mount --propagation shared --pid --fork --kill-child \
        bash -c 'umount -l /sys/fs/cgroup; mount -t proc proc /proc
            mount -t cgroup2 cgroup2 /sys/fs/cgroup
            exec /lib/systemd/systemd --unit=gradwatch.service' >/dev/null 2>&1 &
    until_ok pgrep --parent $! systemd >/dev/null
    init=$(pgrep --parent $! systemd)
    inside() { nsenter --target "$init" --mount --pid --cgroup "$@"; }
    trap 'inside systemctl status gradwatch >&2' ERR
"""


@pytest.mark.slow
def test_systemd_runs_the_service(tmp_path: Path) -> None:
    program("systemctl", "systemd")
    script = f"""
        {BOOT}
        until_ok inside systemctl is-active gradwatch >/dev/null
        show() {{ inside systemctl show gradwatch --value --property "$1"; }}
        show ActiveState
        inside systemctl reload gradwatch
        show ActiveState
        inside gradwatch keys --dir /etc/gradwatch/keys >/dev/null
        inside mkdir /etc/systemd/system/gradwatch.service.d
        cat >/etc/systemd/system/gradwatch.service.d/override.conf <<'END'
{DROP_IN}
END
        inside systemctl daemon-reload
        inside systemctl restart gradwatch
        inside curl --silent --output /dev/null --write-out '%{{http_code}}\\n' \\
            http://127.0.0.1:8420/runs
        inside systemctl stop gradwatch
        show Result
        show ExecMainStatus
        stat --format '%a' /var/lib/private/gradwatch/gradwatch.db
        inside sh -c 'echo >/etc/gradwatch/keys/server.key'
        ! inside systemctl start gradwatch 2>/dev/null
    """

    printed = run_in_machine(script, tmp_path).split()

    assert printed == ["active", "active", "401", "success", "0", "600"]
