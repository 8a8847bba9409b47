"""Files that only their owner may read: a token guards over HTTP what is in them."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700

logger = logging.getLogger(__name__)

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def create_private(path: Path) -> None:
    """Make an empty file, whatever the umask, unless there is one or it cannot be made."""
    with contextlib.suppress(OSError):  # whoever opens it says why
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE))


def make_private(paths: Iterable[Path]) -> None:
    """Take from others what they may do with files, such as a copy that was put there."""
    for path in paths:
        with contextlib.suppress(OSError):  # it is not there, or not ours
            if path.stat().st_mode & _OTHERS:
                path.chmod(PRIVATE)


def warn_of_writers(directory: Path) -> None:
    """Say in the log that others may write a directory: they can replace what is in it.

    It is used all the same: some volumes are mounted so.
    """
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        who = "everybody" if mode & stat.S_IWOTH else "its group"
        logger.warning(
            "the data directory %s may be written by %s (mode %04o), who can replace the data; "
            "chmod go-w %s",
            directory,
            who,
            mode,
            directory,
        )
