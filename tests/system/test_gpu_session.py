"""The session for the first minutes on a GPU: rehearsed on the CPU, killed and resumed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_session.aims import HELD, MISSED, NOT_MEASURED, Aim, verdicts
from benchmarks.gpu_session.calls import OTHER, SENDER, TRAINING, Event, by_thread
from benchmarks.gpu_session.rows import Rows, read
from benchmarks.gpu_session.session import DONE, OVER, Session
from benchmarks.gpu_session.stages import STAGES
from benchmarks.gpu_session.wheels import unpack

ROOT = Path(__file__).resolve().parents[2]


def session(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a rehearsal as `scripts/bench gpu` does: nothing is installed."""
    return subprocess.Popen(
        [
            *("bash", str(ROOT / "scripts" / "bench"), "gpu", "--rehearse"),
            *("--out", str(folder), "--wheels", str(folder / "none"), *arguments),
        ],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def known(folder: Path) -> dict[str, Any]:
    file = folder / "rehearsal.json"
    found: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {"stages": {}}
    return found


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rehearsal_runs_every_stage_to_its_end(tmp_path: Path) -> None:
    process = session(tmp_path)
    output, errors = process.communicate()

    stages = known(tmp_path)["stages"]
    assert {number: stages[number]["status"] for number in stages} == {
        str(number): DONE for number in range(len(STAGES))
    }, errors
    rows = [row for stage in stages.values() for row in stage["rows"]]
    assert [row for row in rows if row["passed"] is False] == []
    assert process.returncode == 0
    assert all(stage.title in output for stage in STAGES)
    # Times on a CPU are no evidence.
    found = verdicts(rows)
    assert {found[aim] for aim in (Aim.DEVICE_FLOAT32, Aim.HOST, Aim.STEP)} == {NOT_MEASURED}
    assert {found[aim] for aim in (Aim.CAPTURES, Aim.ARRIVAL, Aim.NUMBERS)} == {HELD}


@pytest.mark.slow
def test_a_stage_that_takes_too_long_is_ended_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = [str(ROOT / name) for name in ("client", "shared", "server", ".")]
    found = Session(tmp_path, is_rehearsal=True, path=path).run(0, 0.1)

    assert found["status"] == OVER
    assert found["rows"] == []


def test_what_cannot_be_imported_is_said_with_how_to_get_it(tmp_path: Path) -> None:
    """A Python without site-packages has neither torch nor the wheels."""
    found = subprocess.run(
        [
            *(sys.executable, "-S", "-m", "benchmarks.gpu_session"),
            *("--out", str(tmp_path), "--wheels", str(tmp_path / "none")),
        ],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 2
    assert "torch and zmq and msgpack" in found.stderr
    assert "pip download" in found.stderr


def test_lines_are_kept_up_to_where_a_stage_was_ended(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with Rows(path, is_rehearsal=False) as rows:
        rows.limit("fast", [1.0, 2.0, 9.0], "ms", 2.0, Aim.HOST)
        rows.limit("slow", [3.0], "ms", 2.0, Aim.STEP)
        with rows.attempt("broken", Aim.CAPTURES):
            raise RuntimeError("operation not permitted when stream is capturing")
    path.write_text(path.read_text("utf-8") + '{"what": "cut o', encoding="utf-8")
    found = read(path)

    assert [row["passed"] for row in found] == [True, False, False]
    assert "not permitted" in found[2]["note"]
    assert verdicts(found)[Aim.HOST] == HELD
    assert verdicts(found)[Aim.STEP] == verdicts(found)[Aim.CAPTURES] == MISSED
    assert verdicts(found)[Aim.MEMORY] == NOT_MEASURED


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


def test_wheels_that_were_carried_are_unpacked(tmp_path: Path) -> None:
    """Installing would need more than what an image has."""
    with zipfile.ZipFile(tmp_path / "carried-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried/__init__.py", "there = True\n")

    assert unpack(tmp_path, tmp_path / "site") == [str(tmp_path / "site")]
    assert (tmp_path / "site" / "carried" / "__init__.py").exists()
    assert unpack(tmp_path / "none", tmp_path / "site") == []


def test_each_stage_is_on_the_page_with_its_limit() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text("utf-8")
    listed = re.findall(r"^\| (\d+) \| (\d+) \|", page, re.MULTILINE)

    assert listed == [(str(n), f"{stage.limit_s:g}") for n, stage in enumerate(STAGES)]
