"""A machine of a test's own, as far as Linux gives one: its own files, processes, network, mounts.

Its root is this machine's with a layer above it, in which all may be changed; nothing of it stays.
gradwatch and torchrun are in /opt/gradwatch, where an operator would install them. So what
containers and services do to a process can be done for real: another user, a root that is
read-only, capabilities taken.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from tests.support.waiting import PATIENCE_S

REPOSITORY: Final = Path(__file__).parents[2]
INSTALLED: Final = "/opt/gradwatch"

_ROOT: Final = r"""
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$SCRATCH"
mkdir "$SCRATCH"/{upper,work,root}
mount -t overlay overlay \
    -o lowerdir=/,upperdir="$SCRATCH/upper",workdir="$SCRATCH/work" "$SCRATCH/root"
cd "$SCRATCH/root"
mount --rbind /dev dev
mount --rbind /sys sys
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
ip link set lo up
ip address add 192.0.2.1/32 dev lo  # names resolve only where there is an address besides loopback
mkdir -p opt/gradwatch/{bin,python,packages,site,source} outside
mount --rbind "$PYTHON" opt/gradwatch/python
mount --rbind "$PACKAGES" opt/gradwatch/packages
for name in $INSTALLED; do ln -s "../packages/$name" opt/gradwatch/site/; done
mount --rbind "$SOURCE" opt/gradwatch/source
while read -r command run; do
    cat >opt/gradwatch/bin/$command <<END
#!/bin/sh
export LD_LIBRARY_PATH=/opt/gradwatch/python/lib
sources=/opt/gradwatch/source
export PYTHONPATH=\$sources/client:\$sources/server:\$sources/shared:/opt/gradwatch/site
exec /opt/gradwatch/python/bin/python3 $run "\$@"
END
    chmod 755 opt/gradwatch/bin/$command
done <<<"python
gradwatch -P -m gradwatch_server
torchrun -P -m torch.distributed.run"
pivot_root . outside
PATH=/usr/sbin:/usr/bin:/sbin:/bin
umount -l /outside
cd /
unset SCRATCH PYTHON PACKAGES INSTALLED SOURCE
PATH=/opt/gradwatch/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""

_WAIT: Final = r"""
# Runs a command until it succeeds, or fails after so many seconds.
until_ok() {
    local end=$((SECONDS + PATIENCE_S))
    until "$@"; do ((SECONDS < end)) || return 1; sleep 0.1; done
}
trap 'cat /tmp/log >&2 2>/dev/null || true' ERR
"""


def may_have_one() -> bool:
    """Tell whether this user may make namespaces and mount in them."""
    return not subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True, check=False
    ).returncode


def run_in_machine(script: str, scratch: Path, installed: Iterable[str] | None = None) -> str:
    """Run a script of Bash as root of such a machine, and return what it printed.

    Every process of the machine ends with the script. `until_ok COMMAND...` waits in it; what is
    written to `/tmp/log` is shown if it fails.

    Args:
        script: It stops at the first command that fails, and then so does the test.
        scratch: An empty directory.
        installed: What Python finds there of our own site-packages; None for all of it.
    """
    if os.geteuid() != 0 or not may_have_one():
        pytest.skip("only root may make namespaces and mount in them")
    packages = Path(sysconfig.get_path("purelib"))
    if installed is None:
        installed = [path.name for path in packages.iterdir()]
    limit = f"PATIENCE_S={PATIENCE_S:.0f}"
    done = subprocess.run(
        [
            *("unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--cgroup"),
            *("--fork", "--kill-child", "bash", "-euo", "pipefail", "-c"),
            "\n".join((_ROOT, limit, _WAIT, script)),
        ],
        env={
            "SCRATCH": str(scratch),
            "SOURCE": str(REPOSITORY),
            "PYTHON": sys.base_prefix,
            "PACKAGES": str(packages),
            "INSTALLED": " ".join(installed),
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        },
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def as_user(number: int, *command: str) -> str:
    """Return a shell's line that runs a command as a user and group, without any privilege."""
    confined = (
        *("setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups"),
        *("--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"),
        *("env", "-i", f"PATH={INSTALLED}/bin:/usr/bin:/bin"),
    )
    return shlex.join((*confined, *command))
