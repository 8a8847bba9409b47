"""`scripts/bench gpu`: runs what is left of a session, and prints the table.

It needs a PyTorch image and two wheels, no network and no installation. `docs/gpu.md` says what
each stage shows.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu_session import wheels
from benchmarks.gpu_session.aims import MISSED, NOT_MEASURED, verdicts
from benchmarks.gpu_session.session import DONE, ROOT, STOPPED, Session, is_over, limit_s
from benchmarks.gpu_session.stages import STAGES
from benchmarks.gpu_session.table import all_rows, lines

SOURCES: Final = tuple(str(ROOT / name) for name in ("client", "shared", "server", "."))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench gpu",
        description="Measure and check on a GPU; finished stages are skipped.",
        epilog="\n".join(f"{n:2}  {s.limit_s:3g} s  {s.title}" for n, s in enumerate(STAGES)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, in little time")
    parser.add_argument("--again", action="store_true", help="also the stages that are finished")
    parser.add_argument("--only", default="", metavar="3,5", help="these stages")
    parser.add_argument("--budget", type=float, default=570.0, help="seconds in all (570)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-session", help="folder")
    parser.add_argument("--wheels", type=Path, default=ROOT / "wheels", help="folder with wheels")
    return parser.parse_args()


def main() -> int:
    """Run it; return 0 if all stages ended well and no aim was missed."""
    given = _arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    path = [*SOURCES, *wheels.unpack(given.wheels, given.out.absolute() / "site")]
    sys.path[:0] = path
    if missing := wheels.missing():
        print(wheels.HOW.format(missing=" and ".join(missing)), file=sys.stderr)
        return 2
    if before := os.environ.get("PYTHONPATH"):
        path.append(before)
    session = Session(given.out.absolute(), given.rehearse, path)
    try:
        wanted = [int(each) for each in given.only.split(",") if each]
    except ValueError:
        wanted = [-1]
    if not all(0 <= number < len(STAGES) for number in wanted):
        print(f"--only: stages are 0 to {len(STAGES) - 1}, as in 3,5", file=sys.stderr)
        return 2
    state = _run(session, wanted or list(range(len(STAGES))), given.budget, again=given.again)
    print("\n".join(lines(state)))
    print(f"\n{session.file}")
    return 0 if _is_well(state) else 1


def _run(session: Session, wanted: list[int], budget_s: float, *, again: bool) -> dict[str, Any]:
    """Run the stages that are left; save after each."""
    began, state = time.monotonic(), session.load()
    for number in wanted:
        if is_over(state, number) and not again:
            continue
        seconds = limit_s(number, budget_s - (time.monotonic() - began))
        if not seconds:
            print("the time is over: run it again to go on", file=sys.stderr)
            break
        print(f"stage {number}: {STAGES[number].title}", file=sys.stderr)
        state["stages"][str(number)] = session.run(number, seconds)
        session.save(state)
        if state["stages"][str(number)]["status"] == STOPPED:
            break
        if log := state["stages"][str(number)]["log"]:
            print(log, file=sys.stderr)
    return state


def _is_well(state: dict[str, Any]) -> bool:
    found = list(state["stages"].values())
    if len(found) < len(STAGES) or any(stage["status"] != DONE for stage in found):
        return False
    rows = all_rows(state)
    if state["is_rehearsal"]:
        return all(row["passed"] is not False for row in rows)
    return not {MISSED, NOT_MEASURED}.intersection(verdicts(rows).values())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the stage, keeps the rest
    sys.exit(main())
