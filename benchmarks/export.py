"""What `gradwatch export` costs: rows per second, memory and bytes of each format."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Aggregator, aggregator
from benchmarks.long_run import RUN, make
from benchmarks.report import show
from gradwatch_server.cli.export.formats import FORMATS
from tests.support.aggregator import GRADWATCH


@dataclass(frozen=True, slots=True)
class Cost:
    """What one export took.

    Args:
        seconds: From the start of the process to its end.
        peak_bytes: Memory that it had at the most.
        num_bytes: Size of what it made.
    """

    seconds: float
    peak_bytes: int
    num_bytes: int


def run(*, quick: bool = False, steps: int = 10_000, layers: int = 1_000, only: str = "") -> None:
    """Measure and print."""
    if quick:
        steps, layers = 640, 20
    names = [name for name in FORMATS if only in name]
    with aggregator() as service, tempfile.TemporaryDirectory() as scratch:
        made = make(service, steps, layers)
        rows = made.steps * layers
        costs = {name: _export(service, name, Path(scratch)) for name in names}
    show(
        "exports",
        ("format", "s", "rows/s", "bytes/row", "MB", "peak MB"),
        [
            [
                name,
                f"{own.seconds:.1f}",
                f"{rows / own.seconds:,.0f}",
                f"{own.num_bytes / rows:.1f}",
                f"{own.num_bytes / 1e6:,.1f}",
                f"{own.peak_bytes / 1e6:,.0f}",
            ]
            for name, own in costs.items()
        ],
        f"{made.steps:,} steps x {layers:,} layers: {rows:,} rows, each with what a format writes "
        "if nothing is said.",
        "The whole command, with the start of its process; memory is that of the command alone.",
    )


def _export(service: Aggregator, name: str, directory: Path) -> Cost:
    out = directory / name
    command = [str(GRADWATCH), "export", RUN, "--to", name, "--url", service.url, "--out", str(out)]
    began_s = time.perf_counter()
    pid = os.posix_spawn(command[0], command, os.environ)
    _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - began_s
    if status != 0:
        msg = f"{name} ended with {os.waitstatus_to_exitcode(status)}"
        raise RuntimeError(msg)
    files = [own for own in out.rglob("*") if own.is_file()]
    return Cost(seconds, usage.ru_maxrss * 1024, sum(own.stat().st_size for own in files))
