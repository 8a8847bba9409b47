"""The process of one stage: `python -m benchmarks.gpu_session.stage 3 FILE [--rehearse]`."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from importlib import import_module
from pathlib import Path

from benchmarks.gpu_session.device import Device
from benchmarks.gpu_session.rows import Rows
from benchmarks.gpu_session.stages import STAGES


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description="Run one stage of a GPU session.")
    parser.add_argument("number", type=int, choices=range(len(STAGES)))
    parser.add_argument("file", type=Path, help="where its lines are appended")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU")
    parser.add_argument("--child", action="store_true", help="end when standard input does")
    given = parser.parse_args()
    if given.child:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    device = Device(is_rehearsal=given.rehearse)
    with Rows(given.file, is_rehearsal=given.rehearse) as rows:
        import_module(f"benchmarks.gpu_session.{STAGES[given.number].module}").run(device, rows)


def _end_with_parent() -> None:
    # Through `sys.stdin` it would hold a lock that Python wants at its end.
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)  # the session has made this process the first of a group


if __name__ == "__main__":
    main()
