"""Whether the files of a data directory are still those that were opened.

An open file outlives its name: what is written after the directory was removed, or another one was
mounted over it, is gone with the process. SQLite does not look.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

from gradwatch_server.storage.store import StorageError, StorageFault

_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENXIO})


class Presence:
    """The files as they were when they were opened, by device and inode."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Note the files that are there."""
        self._files = {path: own for path in paths if (own := _identity(path)) is not None}

    def check(self) -> None:
        """Look whether each is where it was; that takes a microsecond each.

        Raises:
            StorageError: If one was removed, renamed or replaced.
        """
        for path, before in self._files.items():
            try:
                is_there = _identity(path) == before
            except OSError:  # nobody says that it is another one
                is_there = True
            if not is_there:
                msg = (
                    f"{path} was removed or replaced while it was in use: what would be written "
                    "now could not be found again, so nothing is taken in; put the data directory "
                    "back as it was, or choose another one with --data, and start again"
                )
                raise StorageError(msg, StorageFault.GONE)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file, None if there is none.

    Raises:
        OSError: If that cannot be told.
    """
    try:
        found = path.stat()
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
    return found.st_dev, found.st_ino
