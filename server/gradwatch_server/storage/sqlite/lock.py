"""The lock of a data directory: one aggregator at a time has it, until its process is gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from gradwatch_server.storage.rows import StorageError, StorageFault
from gradwatch_server.storage.sqlite.private_files import (
    PRIVATE,
    PRIVATE_DIRECTORY,
    warn_of_writers,
)

LOCK_NAME: Final = "gradwatch.lock"

READ_BYTES: Final = 200
"""More than the file has in it."""

_NOTED: Final = re.compile(rb"log (\d{1,18}) alerts (\d{1,18})\n")
_BOOT: Final = re.compile(rb"^boot ([0-9a-f]{1,64})\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class StoreEnd:
    """End of a store when it was last noted beside it."""

    row: int = 0
    cursor: int = 0


class DirectoryLock:
    """A held lock.

    The file beside the data has the pid of its holder, for people who look; which start of an
    aggregator that is, so that who answers at a port can be compared with it; and how far the store
    is: a store that is found empty would not tell that there was one.

    Attributes:
        noted: How far the store was when somebody last had it; zeros if that is not known.
    """

    def __init__(self, directory: Path, boot: str = "") -> None:
        """Make the directory if there is none, and lock it.

        Args:
            boot: What tells this start of the aggregator from others, hexadecimal digits; empty
                where no aggregator locks it.

        Raises:
            StorageError: If it cannot be used, or another process has it.
        """
        self._file = _open(directory)
        self._boot = boot
        text = self._file.read(READ_BYTES)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = holder_in(text)[0] or "unknown"
            self._file.close()
            msg = (
                f"the data directory {directory} is in use by another aggregator (pid {owner}); "
                "stop it, or choose another directory with --data"
            )
            raise StorageError(msg, StorageFault.LOCKED) from error
        match = _NOTED.search(text)
        self.noted = StoreEnd(*map(int, match.groups())) if match is not None else StoreEnd()
        self._write(self.noted)
        warn_of_writers(directory)

    def note(self, noted: StoreEnd) -> None:
        """Note how far the store is; nothing waits for the disk."""
        if noted != self.noted:
            self._write(noted)

    def _write(self, noted: StoreEnd) -> None:
        text = f"{os.getpid()}\n"
        if self._boot:
            text += f"boot {self._boot}\n"
        if noted != StoreEnd():
            text += f"log {noted.row} alerts {noted.cursor}\n"
        with contextlib.suppress(OSError):  # on a full disk nobody reads it
            # In place and shortened afterwards, so that a full disk takes nothing from it.
            os.pwrite(self._file.fileno(), text.encode(), 0)
            os.ftruncate(self._file.fileno(), len(text))
        self.noted = noted

    def release(self) -> None:
        """Let another process have the directory."""
        self._file.close()


def holder_in(text: bytes) -> tuple[str, str]:
    """Return the pid and the start that a lock's file says its holder has; empty if it does not."""
    match = _BOOT.search(text)
    pid = text.partition(b"\n")[0].decode("ascii", "replace").strip()
    return pid, "" if match is None else match[1].decode()


def _open(directory: Path) -> IO[bytes]:
    try:
        directory.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        number = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        return os.fdopen(number, "r+b", buffering=0)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        msg = f"cannot use the data directory {directory}: {reason}; choose one with --data"
        raise StorageError(msg, StorageFault.UNUSABLE) from error
