"""The lock of a data directory: one aggregator at a time has it, until its process is gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO, Final

from gradwatch_server.storage.sqlite.private_files import PRIVATE_DIRECTORY, create_private
from gradwatch_server.storage.store import StorageError, StorageFault

LOCK_NAME: Final = "gradwatch.lock"


class DirectoryLock:
    """A held lock. The file beside the data has the pid of its holder, for people who look."""

    def __init__(self, directory: Path) -> None:
        """Make the directory if there is none, and lock it.

        Raises:
            StorageError: If it cannot be used, or another process has it.
        """
        self._file = _open(directory)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            owner = self._file.read().strip() or "unknown"
            self._file.close()
            msg = (
                f"the data directory {directory} is in use by another aggregator (pid {owner}); "
                "stop it, or choose another directory with --data"
            )
            raise StorageError(msg, StorageFault.LOCKED) from error
        with contextlib.suppress(OSError):  # on a full disk nobody reads who it is
            self._file.truncate(0)
            # Past the buffer, which would try again when the file is closed.
            os.write(self._file.fileno(), f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Let another process have the directory."""
        self._file.close()


def _open(directory: Path) -> IO[str]:
    try:
        directory.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        create_private(directory / LOCK_NAME)
        return (directory / LOCK_NAME).open("a+", encoding="ascii")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or error
        msg = f"cannot use the data directory {directory}: {why}; choose one with --data"
        raise StorageError(msg, StorageFault.UNUSABLE) from error
