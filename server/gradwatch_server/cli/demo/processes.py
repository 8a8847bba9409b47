"""Processes of the demo: the aggregator, and one for each rank."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from gradwatch_server.cli.client import get, run_path
from gradwatch_server.cli.demo.acts import ACTS, RUN, STEPS, WORLD
from gradwatch_server.errors import GradwatchError

GRADWATCH: Final = (sys.executable, "-m", "gradwatch_server")
TRAINING: Final = (sys.executable, "-m", "gradwatch.demo")
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
START_S: Final = 30.0
STOP_S: Final = 5.0
ERROR: Final = re.compile(r"(?m)^\s*(?:\[rank\d+\]: )?([\w.]+(?:Error|Exception|Interrupt)\b.*)")
ECHO: Final = re.compile(r"gloo|Connection (closed|reset)|Broken pipe")


def environment(**more: object) -> dict[str, str]:
    """Return the environment without settings of gradwatch."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("GRADWATCH_")}
    return kept | {name: str(value) for name, value in more.items()}


@contextmanager
def _postponed_signals() -> Iterator[None]:
    """Let signals wait while a process starts: one that nobody knows of yet could not be ended."""
    waiting: list[int] = []
    before = {
        each: signal.signal(each, lambda number, _: waiting.append(number)) for each in ENDING
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in waiting:
            signal.raise_signal(number)


class Process(subprocess.Popen[str]):
    """A process with its errors in `NAME.log`; *stack* ends it.

    It gets a session of its own: Ctrl-C reaches the demo alone, which then ends the others.
    """

    def __init__(
        self, stack: ExitStack, folder: Path, name: str, *command: object, **env: object
    ) -> None:
        self.log = folder / f"{name}.log"
        with _postponed_signals(), self.log.open("w") as errors:
            super().__init__(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=folder,
                env=environment(**env),
                start_new_session=True,
            )
            stack.callback(self.stop)

    def stop(self) -> None:
        """End it, by SIGKILL if SIGTERM does not."""
        self.terminate()
        try:
            self.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self.wait()

    def last_error(self) -> str:
        """Return the last line of the log that looks like an error, else the last one."""
        text = self.log.read_text(errors="replace")
        lines: list[str] = (
            ERROR.findall(text) or text.strip().splitlines() or ["it printed nothing"]
        )
        return lines[-1].strip()

    def how_it_ended(self) -> str:
        """Return how it ended and, if it ended by itself, its last error."""
        code = self.wait()
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}: {self.last_error()}"


class Aggregator(Process):
    """`gradwatch serve` on free ports; it prints where it listens."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        addresses = ("--http", "127.0.0.1:0", "--ingest", "tcp://127.0.0.1:0")
        command = (*GRADWATCH, "serve", "--data", folder / "data", *addresses)
        super().__init__(stack, folder, "serve", *command)
        timeout = threading.Timer(START_S, self.kill)
        timeout.daemon = True
        timeout.start()
        said: dict[str, str] = {}
        for line in self.stdout or ():
            name, _, value = line.strip().partition(" ")
            said[name] = value.strip()
            if name == "data":
                break
        else:
            msg = f"the aggregator did not start, {self.how_it_ended()}"
            raise GradwatchError(msg)
        timeout.cancel()
        self.url, self.endpoint = said["http"], said["ingest"]

    def check(self, timeout_s: float = 0.0) -> None:
        """Raise if it has ended, or does within some seconds."""
        try:
            self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return
        msg = f"the aggregator ended, {self.how_it_ended()}"
        raise GradwatchError(msg)

    def is_finished(self, cursor: int) -> bool:
        """Tell whether all ranks have ended and no alert event comes after a cursor."""
        ranks = get(self.url, run_path(RUN, "health"))["ranks"]
        ended = all(rank["state"] in ("ended", "failed") for rank in ranks)
        return ended and not get(self.url, f"/alerts?after={cursor}")


def start_ranks(stack: ExitStack, folder: Path, endpoint: str, seed: int) -> list[Process]:
    """Start one process per rank, as torchrun would."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    arguments = f"--run {RUN} --steps {STEPS} --seed {seed}".split()
    arguments += " ".join(act.sabotage for act in ACTS).split()
    common = {
        "GRADWATCH_ENDPOINT": endpoint,
        "WORLD_SIZE": WORLD,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        "OMP_NUM_THREADS": 1,  # as torchrun sets it: more on few cores is many times slower
    }
    return [
        Process(stack, folder, f"rank{rank}", *TRAINING, *arguments, RANK=rank, **common)
        for rank in range(WORLD)
    ]


def are_over(ranks: Sequence[Process]) -> bool:
    """Tell whether all ranks have ended well.

    Raises:
        GradwatchError: If one failed. A rank that only lost its peer is not the one to name.
    """
    failed = [process for process in ranks if process.poll() not in (None, 0)]
    if failed:
        first = min(failed, key=lambda process: ECHO.search(process.last_error()) is not None)
        msg = f"training failed on rank {ranks.index(first)}, {first.how_it_ended()}"
        raise GradwatchError(msg)
    return all(process.poll() == 0 for process in ranks)
