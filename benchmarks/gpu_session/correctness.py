"""The numbers against float64 on the CPU, the tests that need a GPU, memcheck."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Final

import torch
from torch import Tensor

from benchmarks.gpu_session.aims import Aim
from benchmarks.gpu_session.device import Device
from benchmarks.gpu_session.rows import Rows
from gradwatch._statistics.cuda import kernel_statistics
from gradwatch._statistics.gradients import is_packed
from gradwatch._statistics.norm_slots import Expected, NormSlots
from gradwatch._statistics.single import measure_norm
from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import MEASURED_COLUMNS

DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FILLS: Final = (1.0, 60000.0, 1e-7, 0.0, 1e30, 1e-30, math.nan, math.inf)
SIZES: Final = (1, 7, 4095, 4097, 300_000)
TOOL_S: Final = 60.0
ROOT: Final = Path(__file__).resolve().parents[2]
TOLERANCE: Final = 1e-5
TESTS: Final = ("test_cuda.py", "test_kernel.py", "test_kernel_norms.py", "test_statistics.py")


def run(device: Device, rows: Rows) -> None:
    """Check all of it, each part whether or not the one before was right."""
    for dtype in DTYPES:
        with rows.attempt(f"numbers, {dtype}", Aim.NUMBERS):
            _compare(device, rows, f"numbers, {dtype}", list(_made(device, dtype)))
    with rows.attempt("numbers, all dtypes together", Aim.NUMBERS):
        mixed = [each for dtype in DTYPES for each in _made(device, dtype)]
        _compare(device, rows, "numbers, all dtypes together", mixed)
    with rows.attempt("pytest", Aim.NUMBERS):
        _test(device, rows)
    with rows.attempt("compute-sanitizer", Aim.NUMBERS):
        _check_memory(device, rows)


def _made(device: Device, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield, on the CPU, tensors of any bits, of each fill, and of odd layouts."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    generator = torch.Generator(device="cpu").manual_seed(0)
    for size in device.choose(SIZES, SIZES[:3]):
        low, high = torch.iinfo(bits).min, torch.iinfo(bits).max
        some = torch.randint(low, high, (size,), dtype=bits, generator=generator).view(dtype)
        yield some
        yield torch.where(some.isfinite(), some, 0.0)
    for fill in FILLS:
        yield torch.full((5000,), fill).to(dtype)
    square = torch.randn(70, 70, generator=generator).to(dtype)
    yield from (square, square.T, square[::3], square[:, ::2], square.view(-1)[1:])
    yield torch.empty(0, dtype=dtype)


def _compare(device: Device, rows: Rows, what: str, made: Sequence[Tensor]) -> None:
    there = _moved(device, made)
    # What lies with gaps is no case for the kernel; all else is, and nothing is left without cause.
    odd = [place for place, tensor in enumerate(there) if not is_packed(tensor)]
    left = odd if device.is_rehearsal else list(kernel_statistics(there, MEASURED_COLUMNS).left)
    found = statistics(there, MEASURED_COLUMNS)
    columns = {name: values.tolist() for name, values in found.values.items()}
    wrong = [
        f"{name} of number {place} is {columns[name][place]}, not {expected}"
        for place, tensor in enumerate(made)
        for name, expected in _expected(tensor).items()
        if not _is_close(columns[name][place], expected)
    ]
    paths = {found.path, found.declined} - {""}
    is_best = device.is_rehearsal or (found.path, found.declined) == ("triton", "")
    note = wrong[0] if wrong else ", ".join(sorted(paths))
    rows.add(what, [len(wrong)], "wrong", passed=not wrong and is_best, aim=Aim.NUMBERS, note=note)
    unread = sorted(set(left).symmetric_difference(odd))
    rows.add(
        f"{what}: left by the kernel, of {len(made)}",
        [len(left)],
        passed=not unread,
        aim=Aim.NUMBERS,
        note=f"not those with gaps: numbers {unread[:5]}" if unread else "those with gaps",
    )


def _moved(device: Device, made: Sequence[Tensor]) -> list[Tensor]:
    """Return them on the device, as they lie: `.to` makes strided tensors dense."""
    there = [
        torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device.name).copy_(t)
        for t in made
    ]
    return [_unaligned(t) if number % 3 == 0 else t for number, t in enumerate(there)]


def _unaligned(tensor: Tensor) -> Tensor:
    """Return the same numbers one element behind where an allocation begins."""
    if not tensor.is_contiguous():
        return tensor
    longer = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    return longer[1:].view(tensor.shape).copy_(tensor)


def _expected(tensor: Tensor) -> dict[str, float]:
    """Return the six of a tensor on the CPU by Python's floats, which only overflow."""
    numbers = tensor.reshape(-1).double().abs().tolist()
    finite = [number for number in numbers if math.isfinite(number)]
    nans = sum(map(math.isnan, numbers))
    infs = len(numbers) - len(finite) - nans
    largest = max(finite, default=0.0)
    norms = {"l2": math.hypot(*finite), "l1": sum(finite), "linf": largest}
    if nans or infs:
        norms = dict.fromkeys(norms, math.nan if nans else math.inf)
    else:
        norms = {name: min(value, sys.float_info.max) for name, value in norms.items()}
    return norms | {"zeros": float(numbers.count(0.0)), "nans": float(nans), "infs": float(infs)}


def _is_close(found: float, expected: float) -> bool:
    if math.isnan(expected):
        return math.isnan(found)
    return found == expected or abs(found - expected) <= TOLERANCE * abs(expected)


def _test(device: Device, rows: Rows) -> None:
    """Run the tests that a GPU runs differently; without plugins that are not there."""
    needed = [name for name in ("pytest", "hypothesis") if find_spec(name) is None]
    if needed:
        rows.skip("pytest", " and ".join(needed))
        return
    folder = ROOT / "tests" / "client" / "statistics"
    options = ["-o", "addopts=", "--import-mode=importlib", "-q", "-p", "no:cacheprovider"]
    if find_spec("pytest_timeout") is None:
        options += ["-W", "ignore::pytest.PytestConfigWarning"]
    # On the CPU the tests take minutes, and CI runs them anyway.
    only = device.choose(["-k", "cuda or triton or kernel"], ["--collect-only"])
    files = [str(folder / name) for name in device.choose(TESTS, TESTS[:1])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *only, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=TOOL_S,
    )
    print(done.stdout[-6000:], done.stderr[-2000:])
    last = done.stdout.strip().rpartition("\n")[2]
    rows.add("pytest", passed=done.returncode == 0, aim=Aim.NUMBERS, note=last[:200])


def _check_memory(device: Device, rows: Rows) -> None:
    """Let compute-sanitizer watch the kernels read five tensors."""
    tool = which("compute-sanitizer")
    command = [sys.executable, "-m", "benchmarks.gpu_session.correctness", device.name]
    if tool is None:
        rows.skip("compute-sanitizer memcheck", "the tool")
    else:
        command = [tool, "--tool", "memcheck", "--error-exitcode", "9", *command]
    with tempfile.TemporaryDirectory() as cache:
        # What was compiled before would lie elsewhere; the allocator hides what is out of bounds.
        environ = {"TRITON_CACHE_DIR": cache, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=TOOL_S,
        )
    print(done.stdout[-4000:], done.stderr[-2000:])
    last = (done.stdout.strip() or done.stderr.strip()).rpartition("\n")[2]
    name = "one call alone" if tool is None else "compute-sanitizer memcheck"
    rows.add(name, passed=done.returncode == 0, aim=Aim.NUMBERS, note=last[:200])


def _measure_five(device: str) -> None:
    """Measure five tensors together, and one by one as in hooks."""
    made = [torch.ones(size + 1, device=device)[1:] for size in (1, 4097, 100_000, 2_000_000, 8)]
    made[2] = made[2].bfloat16()
    found = statistics(made, MEASURED_COLUMNS)
    slots = NormSlots(Expected(each.device, (each.dtype,), 4 * each.numel()) for each in made)
    for index, each in enumerate(made):
        slots.keep(index, measure_norm(each, slots, index))
    print([float(norm) for norm in slots.take(range(len(made))).values()])
    print(found.path, found.declined, found.values["zeros"].tolist())


if __name__ == "__main__":
    _measure_five(sys.argv[1])
