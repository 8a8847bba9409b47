"""Runs a loop in its own processes beside an aggregator, and gathers what each of them knows."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import harness
from benchmarks.loops.registry import Loop
from benchmarks.loops.stored import Stored, read_log
from tests.support.ports import ReservedPort

ROOT: Final = Path(__file__).resolve().parents[2]
LOOP_TIMEOUT_S: Final = 400.0
RULES: Final = "[rules.exploding]\nfor_steps = 1\n"
"""An explosion of one step is to be told: what is asked is whether it is told rightly."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of one loop.

    Args:
        loop: Which one.
        ranks: By rank: by variant: what is true.
        stored: By run: what gradwatch says.
        failure: Why it could not be run at all, empty if it could.
    """

    loop: Loop
    ranks: list[dict[str, dict[str, Any]]]
    stored: dict[str, Stored]
    failure: str = ""


def run_loops(chosen: Sequence[Loop]) -> Iterator[Outcome]:
    """Run loops one after the other; yield each as soon as it is known."""
    for loop in chosen:
        try:
            yield _run(loop)
        except (RuntimeError, AssertionError) as error:  # a rank failed, or something never came
            yield Outcome(loop, [], {}, str(error))


def _run(loop: Loop) -> Outcome:
    """Run a loop beside an aggregator of its own."""
    with harness.aggregator(RULES) as aggregator:
        ranks = _train(loop, aggregator.ingest)
        known = {one["run"] for one in aggregator.json("/runs")}
        answers = {
            run: (aggregator.health_of_ended(run), aggregator.json(f"/runs/{run}/alerts"))
            for run in (trial["run"] for trial in ranks[0].values())
            if run in known
        }
        aggregator.stop()
        log = read_log(aggregator.directory)
    stored = {run: Stored(*answer, *log.get(run, ([], []))) for run, answer in answers.items()}
    return Outcome(loop, ranks, stored)


def _train(loop: Loop, ingest: str) -> list[dict[str, dict[str, Any]]]:
    """Run the processes of a loop to their end.

    Raises:
        RuntimeError: If one fails or does not end; what they printed is in the message.
    """
    with (
        tempfile.TemporaryDirectory(prefix="gradwatch-loops-") as name,
        _environs(loop) as environs,
    ):
        files = [Path(name) / f"{rank}.json" for rank in range(loop.ranks)]
        prints = [Path(name) / f"{rank}.txt" for rank in range(loop.ranks)]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for file, text, environ in zip(files, prints, environs, strict=True):
                environ["GRADWATCH_ENDPOINT"] = ingest
                processes.append(_start(loop, file, text, environ))
            has_ended = _wait(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if not has_ended:
            raise RuntimeError("\n".join(text.read_text("utf-8")[-4000:] for text in prints))
        ranks = [json.loads(file.read_text("utf-8")) for file in files]
    return [{trial["variant"]: trial for trial in trials} for trials in ranks]


def _start(
    loop: Loop, file: Path, prints: Path, environ: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start one rank, which writes what is true to a file."""
    command = [sys.executable, "-m", "benchmarks.loops.process", loop.name, str(file)]
    with prints.open("w") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=os.environ | environ
        )


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Wait until all have ended well; False once one fails, for the others would wait for it."""
    deadline = time.monotonic() + LOOP_TIMEOUT_S
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if any(codes) or all(code == 0 for code in codes):
            return not any(codes)
        time.sleep(0.05)
    return False


@contextlib.contextmanager
def _environs(loop: Loop) -> Iterator[list[dict[str, str]]]:
    """Give the environment of each rank, as a launcher would."""
    one = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if loop.ranks == 1:
        yield [one]
        return
    port = ReservedPort()
    try:
        world = {"WORLD_SIZE": str(loop.ranks), "MASTER_ADDR": "127.0.0.1"}
        world |= {"MASTER_PORT": str(port.number), "LOCAL_WORLD_SIZE": str(loop.ranks)}
        yield [
            one | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(loop.ranks)
        ]
    finally:
        port.close()
