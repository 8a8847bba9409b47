"""`scripts/bench gpu`: checks and times that only a GPU can show, and a verdict on each aim.

Each stage is a process of its own with a limit, so that one that hangs takes nothing from the next.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu_session.aims import MISSED, NOT_MEASURED, verdicts
from benchmarks.spread import with_range

ROOT: Final = Path(__file__).resolve().parents[2]
NEEDED: Final = ("torch", "zmq", "msgpack")
MISSING: Final = """\
gpu: {missing} cannot be imported. Install what the image lacks into a folder and name the folder:

    pip install --target site pyzmq msgpack
    PYTHONPATH=site scripts/bench gpu"""
DONE: Final = "done"


@dataclass(frozen=True, slots=True)
class Stage:
    """Module with `run(device, rows)`, and the seconds after which its process is ended."""

    title: str
    module: str
    limit_s: float


STAGES: Final = (
    Stage("the numbers are right, the tests pass", "correctness", 150),
    Stage("time on the device", "device_time", 120),
    Stage("time on the host, and the calls into CUDA by thread", "host_time", 60),
    Stage("a training step of GPT-2 124M", "step_time", 180),
    Stage("no wait for the device", "waits", 40),
    Stage("every record has the numbers of its own step", "arrival", 40),
    Stage("memory over 1,000 steps", "memory", 30),
)
"""Stages by number: the cheapest and most telling first."""

_MARKS: Final = {True: "ok", False: "FAILED", None: ""}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench gpu",
        description="Measure and check on a GPU.",
        epilog="\n".join(f"{n:2}  {s.limit_s:3g} s  {s.title}" for n, s in enumerate(STAGES)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("stages", nargs="*", type=_stage, help="these, else all")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, in little time")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-session", help="folder")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _stage(text: str) -> int:
    if not text.isdecimal() or int(text) >= len(STAGES):
        raise argparse.ArgumentTypeError(f"{text!r} is no stage: give 0 to {len(STAGES) - 1}")
    return int(text)


def main() -> int:
    """Run the stages; return 0 if all ended well and no aim was missed."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        print(MISSING.format(missing=" and ".join(missing)), file=sys.stderr)
        return 2
    given = _arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    wanted = given.stages or list(range(len(STAGES)))
    if given.child:
        _run_here(wanted[0], given.out, is_rehearsal=given.rehearse)
        return 0
    print(f"Python {platform.python_version()}, {platform.platform()}")
    if given.rehearse:
        print("A rehearsal on the CPU: no time here means anything.")
    all_rows, are_done = [], True
    for number in wanted:
        began = time.monotonic()
        status, rows = run_stage(number, given.out, is_rehearsal=given.rehearse)
        title = STAGES[number].title
        print(f"{number:2}  {title}: {status}, {time.monotonic() - began:.0f} s", flush=True)
        print("\n".join(map(_line, rows)), flush=True)
        are_done = are_done and status == DONE
        all_rows += rows
    found = verdicts(all_rows)
    print(*(f"{verdict:>12}  {aim.value}" for aim, verdict in found.items()), sep="\n")
    if given.rehearse:
        return 0 if are_done and all(row["passed"] is not False for row in all_rows) else 1
    return 0 if are_done and not {MISSED, NOT_MEASURED}.intersection(found.values()) else 1


def run_stage(
    number: int, folder: Path, *, is_rehearsal: bool, limit_s: float | None = None
) -> tuple[str, list[dict[str, Any]]]:
    """Run a stage in a process of its own; return how it ended, and its rows until then.

    Args:
        number: Number of the stage.
        folder: Folder for its rows and its output.
        is_rehearsal: Whether the CPU takes the place of the GPU.
        limit_s: Seconds, else those of the stage.
    """
    from benchmarks.gpu_session.rows import read  # noqa: PLC0415 - needs torch

    command = [sys.executable, "-m", "benchmarks.gpu_session", str(number), "--child"]
    command += ["--out", str(folder), *["--rehearse"] * is_rehearsal]
    rows_file = folder / f"stage-{number}.jsonl"
    rows_file.unlink(missing_ok=True)
    with (folder / f"stage-{number}.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(limit_s or STAGES[number].limit_s)
            status = DONE if code == 0 else f"failed ({code}), see {log.name}"
        except subprocess.TimeoutExpired:
            status = "ended at its limit"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return status, read(rows_file)


def _run_here(number: int, folder: Path, *, is_rehearsal: bool) -> None:
    from benchmarks.gpu_session.device import Device  # noqa: PLC0415 - needs torch
    from benchmarks.gpu_session.rows import Rows  # noqa: PLC0415

    device = Device(is_rehearsal=is_rehearsal)
    with Rows(folder / f"stage-{number}.jsonl", is_rehearsal=is_rehearsal) as rows:
        import_module(f"benchmarks.gpu_session.{STAGES[number].module}").run(device, rows)


def _line(row: Mapping[str, Any]) -> str:
    number = with_range(row["values"], ".4g") if row["values"] else ""
    note = f"  {row['note']}" if row["note"] else ""
    mark = _MARKS[row["passed"]]
    return f"      {row['what']:<52} {number:>26} {row['unit']:<8} {mark:<6}{note}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
