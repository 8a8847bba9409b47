"""Files that only their owner may read: a token guards over HTTP what is in them."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def create_private(path: Path) -> None:
    """Make an empty file, whatever the umask, unless there is one or it cannot be made."""
    with contextlib.suppress(OSError):  # whoever opens it says why
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE))


def make_private(paths: Iterable[Path]) -> None:
    """Take from others what they may do with files that an earlier version made."""
    for path in paths:
        with contextlib.suppress(OSError):  # it is not there, or not ours
            if path.stat().st_mode & _OTHERS:
                path.chmod(PRIVATE)
