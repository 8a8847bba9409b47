"""Code of the CUDA kernels, and calls of the driver. Without a GPU.

Compiled ahead of time with the Triton that is installed, and with those in the folders that
`GRADWATCH_TRITONS` names, parted by `:`. `scripts/versions` installs the oldest and the newest that
go with a torch of the promised range, and names them there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
FOLDERS: list[Any] = list(filter(None, os.environ.get("GRADWATCH_TRITONS", "").split(":")))
WITHOUT_FOLDERS = pytest.param(
    "none", marks=pytest.mark.skip(reason="scripts/versions: with the oldest and newest Triton too")
)
TRITONS = ["", *(FOLDERS or [WITHOUT_FOLDERS])]
each_triton = pytest.mark.parametrize(
    "triton", TRITONS, ids=lambda path: Path(path).name or "installed"
)

MOST_INSTRUCTIONS = {
    ("cuda", "fp32"): 140,
    ("cuda", "bf16"): 300,
    ("cuda", "fp16"): 330,
    ("cuda", "fp64"): 260,
    ("amd", "fp32"): 200,
    ("amd", "bf16"): 320,
    ("amd", "fp16"): 320,
    ("amd", "fp64"): 200,
}
"""For a tile of 8 kB, of each thread. With these an H100 would still wait for its memory: GPT-2's
gradients are 60,742 tiles in float32, of 4 warps each."""

MOST_REGISTERS = {"cuda": 102, "amd": 128}
"""Of a thread: for 20 warps on a multiprocessor, and 4 waves on each of a compute unit's four."""


def output_of(module: str, *arguments: str, triton: str = "") -> list[dict[str, Any]]:
    """The lines that a module beside the tests prints, in a process that compiles."""
    path = [triton, str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", f"tests.support.{module}", *arguments],
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.sampled(1)
@each_triton
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120", "gfx942"])
def test_every_kernel_loads_16_bytes_at_once_and_spills_nothing(arch: str, triton: str) -> None:
    found = output_of("kernel_code", arch, triton=triton)
    kind = "amd" if arch.startswith("gfx") else "cuda"

    formats = ["fp16", "bf16", "fp32", "fp64"]
    assert [(code["kernel"], code["format"]) for code in found] == [
        *(("reduce_segments", each) for each in formats),
        ("combine_segments", ""),
        *(("norm_parts", each) for each in formats),
        ("combine_norms", ""),
        ("keep_larger", ""),
    ]
    for code in found:
        # Where segments are combined some compilers put a number aside, outside of the loops;
        # Triton 3.9 puts one of 8 bytes aside in the kernel of one gradient.
        most = {"reduce_segments": 0, "norm_parts": 8}.get(code["kernel"], 16)
        assert code["spilled"] <= most, code
        assert code["registers"] <= MOST_REGISTERS[kind], code
        if code["format"]:
            tiles = code["loads"] / 4  # two at a time, where a compiler unrolls the loop
            assert tiles in (1, 2), code
            assert code["wide_loads"] == code["loads"], code
            per_tile = code["instructions"] / tiles
            assert 0 < per_tile <= MOST_INSTRUCTIONS[kind, code["format"]], code


@pytest.mark.exhaustive
@each_triton
def test_a_training_compiles_once_per_dtype_and_calls_the_driver_rarely(triton: str) -> None:
    (found,) = output_of("kernel_launches", triton=triton)

    # The first of them compiles the kernel that combines as well.
    assert found["variants"] == {
        "float16": [2, 0],
        "bfloat16": [1, 0],
        "float32": [1, 0],
        "float64": [1, 0],
    }
    # Those of hooks: to put norms together, and to keep the larger one, beside that which reduces.
    assert found["norm_variants"] == {
        "float16": [3, 0],
        "bfloat16": [1, 0],
        "float32": [1, 0],
        "float64": [1, 0],
    }
    assert found["local"] == {"launch": 148 + 1}
    assert found["local, two passes"] == {"launch": 3 * 148 + 1}
    assert found["blocks"] == {"launch": 48 + 1}
    # Of 40 layers; one step of eight looks at the weights.
    in_steps = [sum(calls.values()) - calls["capture query"] for calls in found["updates"]]
    assert max(in_steps) <= 24
    assert sorted(in_steps)[len(in_steps) * 7 // 8 - 1] <= 6
    for dtypes, num_launches, most in (("one", 2, 6), ("two", 3, 9)):
        in_steps = [{**calls, "capture query": 0} for calls in found[dtypes]]
        assert max(sum(calls.values()) for calls in in_steps) <= most
        usual = {"copy": 2, "torch.copy_": 1, "launch": num_launches, "capture query": 0}
        assert in_steps.count(usual) == len(in_steps) * 3 // 4
