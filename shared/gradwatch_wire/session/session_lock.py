"""The lock on a session's files: held by its process, or by the one that replays them."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final


class SessionLock:
    """The right to write or to replay a session's files, held by one process at a time.

    It ends with the process, however that ends, and is not inherited by forks.
    """

    _held: Final[set[Path]] = set()  # by this process, which locks of its own do not keep out

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, directory: Path, session: bytes) -> SessionLock | None:
        """Lock a session's files; None if another one holds them.

        Raises:
            OSError: If the directory cannot be written.
        """
        path = directory.resolve() / f"{session.hex()}.lock"
        if path in cls._held:
            return None
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        cls._held.add(path)
        return cls(path, descriptor)

    def release(self, *, remove: bool) -> None:
        """Give it back; *remove* its file once the session's are gone."""
        if remove:
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._descriptor)
        self._held.discard(self._path)
