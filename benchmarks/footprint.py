"""What `import gradwatch` and an attached watch add to a training process, and an idle aggregator.

Each number is of a fresh interpreter that imports torch first: what torch takes is the peer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.footprint_probe import STEPS
from benchmarks.harness import aggregator, rss_mb
from benchmarks.report import show, with_range

PROBE: Final = Path(__file__).with_name("footprint_probe.py")
PROBE_TIMEOUT_S: Final = 300
SETTLE_S: Final = 1.0

LINES: Final = {
    "torch": ("import torch", ("s", "mb")),
    "import": ("import gradwatch", ("s", "mb")),
    "attach": ("attach()", ("s", "mb")),
    "unwatched": (f"{STEPS} steps before attach()", ("mb",)),
    "watched": (f"{STEPS} steps after it", ("mb",)),
}
FORMS: Final = {"s": ".3f", "mb": ".1f"}


def run(*, quick: bool = False, rounds: int = 9) -> None:
    """Measure and print."""
    rounds = 1 if quick else rounds
    probes, starts, idle = [], [], []
    for _ in range(rounds):
        with aggregator() as server:
            starts.append(server.started_s)
            time.sleep(SETTLE_S)
            idle.append(rss_mb(server.process.pid))
            probes.append(_probe(server.ingest))
    served = ["gradwatch serve, idle", with_range(starts, ".2f"), "", with_range(idle, ".1f"), ""]
    show(
        "footprint",
        ("what", "seconds", "of torch", "resident MB", "of torch"),
        [*(_row(key, probes) for key in LINES), served],
        f"Median of {rounds} fresh interpreters (range), each line in the one process after those "
        "above it; memory is what the line adds. The model has 300 parameter tensors.",
        f"import gradwatch loads {probes[-1]['modules']} modules; threads of a watch: "
        f"{probes[-1]['threads']}. gradwatch serve, a process of its own: until /readyz answers.",
    )


def _row(key: str, probes: Sequence[dict[str, Any]]) -> list[str]:
    name, units = LINES[key]
    cells = [name]
    for unit, form in FORMS.items():
        own = [probe[key][unit] for probe in probes]
        share = median(probe[key][unit] / probe["torch"][unit] for probe in probes)
        cells += [with_range(own, form), f"{share:.1%}"] if unit in units else ["", ""]
    return cells


def _probe(endpoint: str) -> dict[str, Any]:
    command = [sys.executable, str(PROBE), endpoint]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PROBE_TIMEOUT_S
    )
    if done.returncode:
        sys.exit(f"bench: the probe failed: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
