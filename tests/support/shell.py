"""A shell that a test types commands into, as somebody does who follows a page."""

from __future__ import annotations

import os
import signal
import subprocess
from itertools import count
from pathlib import Path

from tests.support.waiting import PATIENCE_S, wait_until


class Shell:
    """Bash, which ends with the first command that fails.

    Args:
        directory: Where it begins.
        log: The file that has what it and its commands print.
        environ: Environment variables on top of those of the tests.
    """

    def __init__(self, directory: Path, log: Path, **environ: str) -> None:
        self._log = log
        self._numbers = count()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["bash", "-e"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=directory,
                env=os.environ | environ,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What was printed so far."""
        return self._log.read_text("utf-8")

    @property
    def has_ended(self) -> bool:
        """Whether it was told to, or a command failed."""
        return self._process.poll() is not None

    def type(self, text: str) -> None:
        """Give it commands, without waiting for their end."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def run(self, text: str) -> str:
        """Run commands and return what they print; none of them may fail."""
        begin, mark = len(self.output), f"done with {next(self._numbers)}"
        self.type(f"{text}\necho '{mark}'")

        def is_done() -> bool:
            assert self._process.poll() is None or mark in self.output, self.output
            return f"{mark}\n" in self.output

        wait_until(is_done, text)
        return self.output[begin:].removesuffix(f"{mark}\n")

    def end(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to it and to all that it started, and wait for its end."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)
        self._process.communicate(timeout=PATIENCE_S)
