"""Processes that begin as forks of one that has imported torch, or the aggregator.

A test whose subject is the start of a process begins with `python` or `torchrun` instead.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.support.waiting import wait_until

PROGRAM: Final = Path(__file__).with_name("fork_server.py")

SERVER: Final = ("gradwatch_server.service", "gradwatch_server.cli.app")
"""Modules that `gradwatch serve` and the other commands import."""

TRAINING: Final = ("torch.distributed", "torch.nn.parallel", "gradwatch")
"""Modules that a training process imports."""


class ForkedProcess(subprocess.Popen[str]):
    """A `Popen` of a Python file whose process is a fork of a fork server.

    Args:
        arguments: The file and its arguments.
        modules: The modules that the process has imported at its start.
        environ: The environment of the process.
        directory: The directory in which the process begins.
        settings: Standard input, output and errors, as `Popen` takes them.
    """

    def __init__(
        self,
        arguments: Sequence[str | Path],
        modules: tuple[str, ...],
        *,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
        **settings: Any,
    ) -> None:
        self._modules = modules
        self._connection = socket.socket(socket.AF_UNIX)
        environ = os.environ if environ is None else environ
        super().__init__(
            [str(each) for each in arguments],
            env=dict(environ),
            cwd=directory,
            text=True,
            **settings,
        )

    def _execute_child(self, args: list[str], *others: Any) -> None:
        """Ask the fork server for the process, in place of `fork` and `exec` in this one."""
        directory, environ = others[4:6]
        pipes = others[9:15]
        request = {"arguments": args, "environ": environ, "directory": str(directory or Path.cwd())}
        given = (pipes[0], pipes[3], pipes[5])
        files = [own if number < 0 else number for own, number in enumerate(given)]
        self._connection.connect(_server(self._modules))
        socket.send_fds(self._connection, [json.dumps(request).encode()], files)
        self._answers = self._connection.makefile("r")
        self.pid = int(self._answers.readline())
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # as `Popen` does itself

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        return self._await_status(0.0)

    def _wait(self, timeout: float | None) -> int:
        status = self._await_status(timeout)
        if status is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return status

    def _await_status(self, timeout_s: float | None) -> int | None:
        """Return the exit status once the fork server has sent it; None after the timeout."""
        if self.returncode is None and select.select([self._connection], [], [], timeout_s)[0]:
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._connection.close()
        return self.returncode


def run_forked(
    arguments: Sequence[str | Path],
    modules: tuple[str, ...],
    *,
    timeout_s: float,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a Python file to its end, as `subprocess.run(capture_output=True, text=True)` does.

    Raises:
        subprocess.TimeoutExpired: If the process has not ended by then; it is killed.
    """
    process = ForkedProcess(
        arguments,
        modules,
        environ=environ,
        directory=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@cache
def _server(modules: tuple[str, ...]) -> str:
    """Start the fork server of these modules, and return the address of its socket."""
    directory = tempfile.TemporaryDirectory(prefix="gradwatch-tests-")
    address = f"{directory.name}/socket"
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, PROGRAM, address, *modules], stdin=subprocess.PIPE, env=environ
    )

    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
        directory.cleanup()

    atexit.register(end)
    wait_until(lambda: Path(address).exists(), "the fork server listens")
    return address
