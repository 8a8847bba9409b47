"""Measurements for a GPU, rehearsed on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.gpu_session.__main__ import STAGES, run_stage
from benchmarks.gpu_session.aims import HELD, MISSED, NOT_MEASURED, Aim, verdicts
from benchmarks.gpu_session.calls import OTHER, SENDER, TRAINING, Event, by_thread
from benchmarks.gpu_session.rows import Rows, read

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rehearsal_runs_every_stage_to_its_end(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "bench"), "gpu", "--rehearse", "--out", str(tmp_path)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    ended = re.findall(r"^ ?(\d+)  (.*): done, ", done.stdout, re.MULTILINE)
    assert ended == [(str(n), stage.title) for n, stage in enumerate(STAGES)], done.stdout
    assert done.returncode == 0, done.stdout
    # Times on a CPU are no evidence.
    for aim in (Aim.ARRIVAL, Aim.NUMBERS):
        assert f"{HELD:>12}  {aim.value}" in done.stdout
    for aim in (Aim.DEVICE_FLOAT32, Aim.HOST, Aim.STEP):
        assert f"{NOT_MEASURED:>12}  {aim.value}" in done.stdout


@pytest.mark.slow
def test_a_stage_that_takes_too_long_is_ended_and_keeps_what_it_has(tmp_path: Path) -> None:
    status, rows = run_stage(0, tmp_path, is_rehearsal=True, limit_s=0.1)

    assert (status, rows) == ("ended at its limit", [])


def test_packages_that_are_missing_are_named_with_how_to_get_them() -> None:
    """A Python without site-packages has neither torch nor pyzmq."""
    found = subprocess.run(
        [sys.executable, "-S", "-m", "benchmarks.gpu_session"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 2
    assert "torch and zmq and msgpack" in found.stderr
    assert "pip install --target" in found.stderr


def test_lines_are_kept_up_to_where_a_stage_was_ended(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with Rows(path, is_rehearsal=False) as rows:
        rows.limit("fast", [1.0, 2.0, 9.0], "ms", 2.0, Aim.HOST)
        rows.limit("slow", [3.0], "ms", 2.0, Aim.STEP)
        with rows.attempt("broken", Aim.MEMORY):
            raise RuntimeError("operation not permitted when stream is capturing")
    path.write_text(path.read_text("utf-8") + '{"what": "cut o', encoding="utf-8")
    found = read(path)

    assert [row["passed"] for row in found] == [True, False, False]
    assert "not permitted" in found[2]["note"]
    assert verdicts(found)[Aim.HOST] == HELD
    assert verdicts(found)[Aim.STEP] == verdicts(found)[Aim.MEMORY] == MISSED
    assert verdicts(found)[Aim.ARRIVAL] == NOT_MEASURED


def test_calls_are_counted_by_the_thread_that_made_them() -> None:
    """Threads that the profiler does not know by the system's id go by 32 bits of another."""
    pthread = 0x7F12_9ABC_DEF0
    events = [
        Event("cuda_runtime", "cudaLaunchKernel", 100, 1.0),
        Event("cuda_driver", "cuLaunchKernelEx", 100, 1.0),
        Event("cuda_runtime", "cudaMemcpyAsync", 101, 1.0),
        Event("cuda_runtime", "cudaEventQuery", pthread & 0xFFFFFFFF, 1.0),
        Event("cuda_runtime", "cudaEventQuery", (pthread & 0xFFFFFFFF) - (1 << 32), 1.0),
        Event("cuda_runtime", "cudaStreamSynchronize", 999, 1.0),
        Event("kernel", "reduce", 7, 1.0),
        Event("cpu_op", "aten::sum", 200, 1.0),
    ]
    found = by_thread(events, {TRAINING: [100, 101], SENDER: [200, pthread]})

    assert found[TRAINING] == Counter({"launches": 2, "copies": 1})
    assert found[SENDER] == Counter({"event queries": 2})
    assert found[OTHER] == Counter({"waits": 1})


def test_each_stage_is_on_the_page_with_its_limit() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text("utf-8")
    listed = re.findall(r"^\| (\d+) \| (\d+) \|", page, re.MULTILINE)

    assert listed == [(str(n), f"{stage.limit_s:g}") for n, stage in enumerate(STAGES)]
