"""Stage 4: what the hardware counted during one launch, if NVIDIA's `ncu` is there."""

from __future__ import annotations

import csv
import subprocess
import sys
from shutil import which
from typing import Any, Final

from benchmarks.gpu_session.device import Device
from benchmarks.gpu_session.rows import Rows

METRICS: Final = {
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory's throughput, of its peak",
    "sm__inst_issued.avg.pct_of_peak_sustained_active": "issue slots in use",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio": "sectors per load",
    "launch__registers_per_thread": "registers per thread",
    "smsp__inst_executed_op_local_ld.sum": "local loads (spills)",
    "gpu__time_duration.sum": "duration",
}
KERNELS: Final = "regex:reduce_segments|norm_parts|combine"
SCALE: Final = "20"


def run(device: Device, rows: Rows) -> None:
    """Let ncu watch one call, the same as stage 1 makes."""
    command = [sys.executable, "-m", "benchmarks.gpu_session.one_call", device.name]
    tool = which("ncu")
    if tool is None or device.is_rehearsal:
        rows.skip("ncu", "the tool")
        return
    options = ["--csv", "--metrics", ",".join(METRICS), "--kernel-name", KERNELS]
    command = [tool, *options, *command, SCALE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50.0)
    print(done.stdout, done.stderr)
    if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
        rows.skip("ncu", "permission to read the counters")
        return
    rows.add("one call", passed=done.returncode == 0, note=done.stderr.strip()[-100:])
    for what, value, unit in table(done.stdout):
        rows.add(what, [value], unit)


def table(text: str) -> list[tuple[str, float, str]]:
    """Return what, value and unit of each line of ncu's CSV, in what else it has printed."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found = []
    for line in csv.DictReader(lines):
        name = METRICS.get(line.get("Metric Name") or "")
        if name is not None:
            kernel = (line.get("Kernel Name") or "").partition("(")[0]
            found.append((f"{kernel}: {name}", _number(line["Metric Value"]), line["Metric Unit"]))
    return found


def _number(text: Any) -> float:
    try:
        return float(str(text).replace(",", ""))
    except ValueError:
        return float("nan")
