"""The `gradwatch` command in a pseudo-terminal, which a test reads and types into."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from pathlib import Path
from typing import Final, Self

from tests.support.aggregator import GRADWATCH
from tests.support.waiting import PATIENCE_S, wait_until

ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, places of the cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC
    r"|\x1bP[^\x1b]*\x1b\\"  # DCS
    r"|\x1b."
)


class Terminal:
    """A process that has a terminal; it is killed at the end of the block.

    Args:
        directory: Where it runs.
        arguments: Those of `gradwatch`.
        rows: Height of the terminal.
        columns: Its width.
        environ: Environment variables on top of those of the tests.
    """

    def __init__(
        self, directory: Path, *arguments: str, rows: int = 40, columns: int = 120, **environ: str
    ) -> None:
        self._own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = subprocess.Popen(
            [GRADWATCH, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=directory,
            env=os.environ | {"TERM": "xterm-256color"} | environ,
            start_new_session=True,
        )
        os.close(theirs)
        self.raw = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while data := os.read(self._own, 65_536):
                self.raw += data.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        return ESCAPES.sub("", self.raw)

    def shows(self, text: str) -> None:
        """Wait until a text was written, or all that the process wrote was read."""
        wait_until(lambda: text in self.text or not self._reader.is_alive(), repr(text))
        assert text in self.text, self.text

    def type(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ends(self) -> int:
        """Wait for its end; return its exit code."""
        return self._process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        os.close(self._own)
