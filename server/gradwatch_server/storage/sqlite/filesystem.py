"""Kind of the file system of a path: SQLite's WAL needs memory that one machine shares."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mountinfo")

NETWORK_TYPES: Final = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre",
        "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "vboxsf",
        "wekafs",
        "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs",
        "fuse.lizardfs", "fuse.mfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
    }
)  # fmt: skip
"""File systems whose files another machine may have open, as Linux names them."""

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


def network_type(path: Path, mounts: Path = MOUNTS) -> str | None:
    """Return the type of the network file system that *path* is on.

    None if it is on another one, or if the system does not say: only Linux does, in a list of
    mounts (proc_pid_mountinfo(5)).
    """
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    type_ = _type_of(path.resolve(), lines)
    return type_ if type_ in NETWORK_TYPES else None


def _type_of(path: Path, lines: list[str]) -> str | None:
    """Return the type of the innermost mount above a path; of two on one place the later one."""
    type_, depth = None, -1
    for line in lines:
        fields, _, rest = line.partition(" - ")
        columns = fields.split(" ")
        if len(columns) < 5 or not rest:
            continue
        point = Path(_ESCAPE.sub(lambda code: chr(int(code[1], 8)), columns[4]))
        if path.is_relative_to(point) and len(point.parts) >= depth:
            type_, depth = rest.split(" ")[0], len(point.parts)
    return type_
