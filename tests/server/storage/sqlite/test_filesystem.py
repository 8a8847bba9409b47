"""What a mount list says of a path, and that a log is refused where it could be damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.errors import GradwatchError
from gradwatch_server.storage.sqlite.filesystem import network_type
from gradwatch_server.storage.sqlite.store import SQLiteStore

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:41 / /home rw,relatime shared:2 master:1 - nfs4 server:/home rw,vers=4.2
31 30 0:42 / /home/me/local rw - xfs /dev/vdb rw
32 22 0:43 / /mnt/my\040share rw - cifs //server/share rw
33 22 0:44 / /mnt/ssh rw - fuse.sshfs me@host:/ rw
34 22 0:45 / /lustre rw - lustre 10.0.0.1@tcp:/fs rw
35 22 0:46 / /over rw - nfs server:/old rw
36 22 0:47 / /over rw - tmpfs tmpfs rw
37 22 0:48 / /fuse rw - fuse.fuse-overlayfs overlay rw
a line of another kind
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/data", None),
        ("/home", "nfs4"),
        ("/home/me/runs", "nfs4"),
        ("/homes/me", None),
        ("/home/me/local/data", None),
        ("/mnt/my share/data", "cifs"),
        ("/mnt/ssh/data", "fuse.sshfs"),
        ("/lustre/x", "lustre"),
        ("/over/x", None),
        ("/fuse/x", None),
    ],
)
def test_the_innermost_mount_says_what_a_path_is_on(
    tmp_path: Path, path: str, kind: str | None
) -> None:
    """Escaped names are read, and of two mounts on one place the later one counts."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)

    assert network_type(Path(path), mounts) == kind


def test_where_no_list_of_mounts_is_nothing_is_refused(tmp_path: Path) -> None:
    assert network_type(tmp_path, tmp_path / "none") is None


def test_this_machine_says_what_a_path_is_on(tmp_path: Path) -> None:
    """The real list can be read; `/proc` is no network."""
    assert network_type(Path("/proc/self")) is None


def test_a_log_on_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / {tmp_path} rw - nfs server:/ rw\n")

    def of_test(path: Path) -> Any:
        return network_type(path, mounts)

    monkeypatch.setattr("gradwatch_server.storage.sqlite.store.network_type", of_test)
    with pytest.raises(GradwatchError, match=r"on a network file system \(nfs\).*allow_network_fs"):
        SQLiteStore.open(tmp_path / "data", Clock())

    SQLiteStore.open(tmp_path / "data", Clock(), allow_network_fs=True).close()
