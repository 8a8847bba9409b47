"""Seconds and memory that `import gradwatch` adds to a training process.

Each number is of a fresh interpreter that imports torch first: what torch takes is the peer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.report import show, with_range

PROBE: Final = Path(__file__).with_name("footprint_probe.py")
PROBE_TIMEOUT_S: Final = 300
FORMS: Final = {"s": ".3f", "mb": ".1f"}


def run(*, quick: bool = False, rounds: int = 9) -> None:
    """Measure and print."""
    probes = [_probe() for _ in range(1 if quick else rounds)]
    show(
        "footprint",
        ("what", "seconds", "of torch", "resident MB", "of torch"),
        [_row(name, probes) for name in ("torch", "gradwatch")],
        f"Median of {len(probes)} fresh interpreters (range), each line in the one process after "
        "that above it; memory is what the line adds.",
        f"import gradwatch loads {probes[-1]['modules']} modules.",
    )


def _row(name: str, probes: Sequence[dict[str, Any]]) -> list[str]:
    cells = [f"import {name}"]
    for unit, form in FORMS.items():
        own = [probe[name][unit] for probe in probes]
        share = median(probe[name][unit] / probe["torch"][unit] for probe in probes)
        cells += [with_range(own, form), f"{share:.1%}"]
    return cells


def _probe() -> dict[str, Any]:
    command = [sys.executable, str(PROBE)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PROBE_TIMEOUT_S
    )
    if done.returncode:
        sys.exit(f"bench: the probe failed: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
