"""The worker processes of one training job, started as torchrun would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.support.forking import TRAINING, ForkedProcess
from tests.support.ports import ReservedPort

END_S: Final = 280.0
"""How long a job may take to end: less than the limit of one test, to see what it printed."""


class Job:
    """One process per rank of a worker script.

    Args:
        script: The Python file to run.
        world: Number of ranks.
        ingest: Endpoint of the aggregator.
        arguments: Arguments of the script.
        is_forked: Whether processes are forks of one that has imported torch; else `python` runs.
    """

    def __init__(
        self,
        script: Path,
        world: int,
        ingest: str,
        arguments: Sequence[str],
        is_forked: bool = True,
    ) -> None:
        self._port = ReservedPort()
        common = {
            "GRADWATCH_ENDPOINT": ingest,
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._port.number),
        }
        self.ranks = [
            _start(
                [str(script), *arguments],
                os.environ | common | {"RANK": str(rank), "WORLD_SIZE": str(world)},
                is_forked=is_forked,
            )
            for rank in range(world)
        ]

    def line(self, rank: int = 0) -> str:
        """Return the next line that a rank prints, without its end; empty when it has ended."""
        output = self.ranks[rank].stdout
        assert output is not None
        return output.readline().rstrip("\n")

    def wait_for_training(self) -> None:
        """Return once every rank is in its training loop."""
        for rank in range(len(self.ranks)):
            assert self.line(rank) == "training"

    def release(self) -> None:
        """Let ranks go on that wait for a line."""
        for rank in range(len(self.ranks)):
            self.release_rank(rank)

    def release_rank(self, rank: int) -> None:
        """Let one rank go on that waits for a line."""
        waiting = self.ranks[rank].stdin
        assert waiting is not None
        waiting.write("go\n")
        waiting.flush()

    def wait(self) -> list[str]:
        """Return what each rank printed; fail if one failed."""
        output = [rank.communicate(timeout=END_S)[0] for rank in self.ranks]
        for rank, text in zip(self.ranks, output, strict=True):
            assert rank.returncode == 0, text
        return output

    def kill(self) -> None:
        """Kill the ranks that still run."""
        for rank in self.ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGKILL)
            rank.communicate()
        self._port.close()


def _start(
    arguments: list[str], environ: dict[str, str], *, is_forked: bool
) -> subprocess.Popen[str]:
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    if is_forked:
        return ForkedProcess(arguments, TRAINING, environ=environ, **pipes)
    process: subprocess.Popen[str] = subprocess.Popen(
        [sys.executable, *arguments], text=True, env=environ, **pipes
    )
    return process


Train: TypeAlias = Callable[..., Job]
"""What the fixture `train` gives: `train(world, "--run", "name", ..., worker="worker.py")`."""
