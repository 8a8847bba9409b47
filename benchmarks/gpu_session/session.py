"""A session: each stage in a process of its own, and a JSON file from which it goes on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu_session import rows
from benchmarks.gpu_session.stages import STAGES

ROOT: Final = Path(__file__).resolve().parents[2]
DONE, OVER, FAILED, STOPPED = "done", "ended at its limit", "failed", "stopped"
SHORTEST_S: Final = 5.0
"""A stage is not begun with less time than this left."""


@dataclass(frozen=True, slots=True)
class Session:
    """Where it is kept, and how it runs.

    Args:
        folder: Of the JSON file, and of the output and the lines of each stage.
        is_rehearsal: Whether the CPU takes the place of the GPU.
        path: Folders in front of PYTHONPATH.
    """

    folder: Path
    is_rehearsal: bool
    path: Sequence[str]

    @property
    def file(self) -> Path:
        """Where all is in the end, and after each stage."""
        name = "rehearsal" if self.is_rehearsal else "session"
        return self.folder / f"{name}.json"

    def load(self) -> dict[str, Any]:
        """Return what is known so far of this code; what is of other code is put aside."""
        code = code_digest()
        if self.file.exists():
            known: dict[str, Any] = json.loads(self.file.read_text("utf-8"))
            if known["code"] == code:
                return known
            self.file.replace(self.file.with_suffix(f".{known['code']}.json"))
        return {"code": code, "is_rehearsal": self.is_rehearsal, "stages": {}}

    def save(self, state: dict[str, Any]) -> None:
        """Write it, whole or not at all."""
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(state, indent=1), encoding="utf-8")
        new.replace(self.file)

    def run(self, number: int, seconds: float) -> dict[str, Any]:
        """Run a stage for at most so long; return its status, its seconds and its lines."""
        found, log = (self.folder / f"stage-{number}{end}" for end in (".jsonl", ".log"))
        found.unlink(missing_ok=True)
        began = time.monotonic()
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu_session.stage", *self._tell(number, found)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(self.path)},
                stdin=subprocess.PIPE,  # it ends when this process does, however that ends
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = _wait(process, seconds)
            finally:
                _end(process)
        return {
            "status": status,
            "seconds": round(time.monotonic() - began, 1),
            "rows": rows.read(found),
            "log": "" if status == DONE else _last_lines(log),
        }

    def _tell(self, number: int, found: Path) -> list[str]:
        return [str(number), str(found), "--child", *["--rehearse"] * self.is_rehearsal]


def code_digest() -> str:
    """Return what tells one state of the client and of the stages from another."""
    digest = hashlib.sha256()
    for folder in ("client", "shared", "benchmarks/gpu_session"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _wait(process: subprocess.Popen[bytes], seconds: float) -> str:
    try:
        return DONE if process.wait(seconds) == 0 else f"{FAILED} ({process.returncode})"
    except subprocess.TimeoutExpired:
        return OVER
    except KeyboardInterrupt:
        return STOPPED


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it, and whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _last_lines(log: Path, number: int = 12) -> str:
    return "\n".join(log.read_text("utf-8", errors="replace").splitlines()[-number:])


def is_over(state: dict[str, Any], number: int) -> bool:
    """Tell whether a stage has run to its end."""
    return bool(state["stages"].get(str(number), {}).get("status") == DONE)


def limit_s(number: int, left_s: float) -> float:
    """Return how long a stage may take where so much is left; nothing if it is not to begin."""
    limit = min(STAGES[number].limit_s, left_s)
    return limit if limit >= SHORTEST_S else 0.0
