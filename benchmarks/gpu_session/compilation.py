"""Stage 2: how long the first calls take, with nothing compiled before and with all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.gpu_session.aims import Aim
from benchmarks.gpu_session.device import Device
from benchmarks.gpu_session.rows import Rows


def run(device: Device, rows: Rows) -> None:
    """Run the first calls in two fresh processes, which have the same cache one after the other."""
    with tempfile.TemporaryDirectory(prefix="gradwatch-triton-") as cache:
        for name in ("cold", "warm"):
            with rows.attempt(f"first calls, {name}", Aim.COMPILED):
                _write(device, rows, name, _first_calls(device, cache))


def _first_calls(device: Device, cache: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_session.first_calls", device.name],
        env=os.environ | {"TRITON_CACHE_DIR": cache},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def _write(device: Device, rows: Rows, name: str, calls: list[dict[str, Any]]) -> None:
    for call in calls:
        is_late = call["is_late"]
        rows.add(
            f"{name}: {call['what']}",
            [call["s"]],
            "s",
            passed=call["compiled"] == 0 if is_late else None,
            aim=Aim.COMPILED if is_late else None,
            note=f"{call['compiled']} binaries compiled" if call["compiled"] else "",
        )
    slow = sum(call["s"] for call in calls if call["is_late"])
    rows.add(f"{name}: all calls after attach", [slow], "s", note=device.choose("", "CPU"))
