"""The first calls in a fresh process, one JSON line each: import, attach, sets of layers."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

SETS: Final = {
    "148 tensors": [768] * 148,
    "147 tensors: one layer fewer": [768] * 147,
    "146 tensors": [768] * 146,
    "1 tensor in one segment": [100],
    "16 tensors": [5000] * 16,
    "17 tensors": [5000] * 17,
    "one of 40 million": [40_000_000],
    "unaligned": [-1001] * 8,
}
"""Sizes; a negative one begins one element behind an allocation."""


def main(device: str) -> None:
    """Make the calls, and say of each how long it took and what it compiled."""
    _tell("import torch", lambda: __import__("torch"))
    torch = sys.modules["torch"]
    _tell("first use of the device", lambda: _synchronized(torch.zeros(1, device=device)))
    _tell("import gradwatch", lambda: __import__("gradwatch"))
    gradwatch: Any = sys.modules["gradwatch"]
    dtypes = (torch.float32, torch.bfloat16)
    model = torch.nn.ParameterList(torch.nn.Parameter(_ones([8], d, device)[0]) for d in dtypes)
    watches: list[Any] = []

    def attach() -> None:
        # Nobody has to listen there.
        watches.append(
            gradwatch.attach(model, run="gpu-session", endpoint="tcp://127.0.0.1:9", local=True)
        )

    def backward() -> None:
        for _ in range(2):
            sum(each.float().square().sum() for each in model).backward()
        _synchronized(None)

    _tell("attach", attach)
    _tell("two backward passes with hooks", backward, is_late=True)
    _tell("first collect()", lambda: _synchronized(watches[0].collect()), is_late=True)
    from gradwatch._statistics.statistics import statistics  # noqa: PLC0415 - it is timed
    from gradwatch_wire.columns import MEASURED_COLUMNS  # noqa: PLC0415

    small = device == "cpu"
    for name, sizes in SETS.items():
        for dtype in dtypes:
            made = _ones([min(size, 5000) for size in sizes] if small else sizes, dtype, device)
            what = f"{name}, {str(dtype).removeprefix('torch.')}"

            def call(made: list[Any] = made) -> None:
                _synchronized(statistics(made, MEASURED_COLUMNS))

            _tell(what, call, is_late=True)
    os._exit(0)  # close() would wait for an aggregator that is not there


def _ones(sizes: Sequence[int], dtype: Any, device: str) -> list[Any]:
    torch = sys.modules["torch"]
    made = [torch.ones(abs(size) + (size < 0), dtype=dtype, device=device) for size in sizes]
    return [each[1:] if size < 0 else each for size, each in zip(sizes, made, strict=True)]


def _synchronized(found: Any) -> Any:
    torch = sys.modules["torch"]
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return found


def _tell(what: str, call: Callable[[], Any], *, is_late: bool = False) -> None:
    before, began = _num_binaries(), time.perf_counter()
    call()
    spent = time.perf_counter() - began
    line = {"what": what, "s": round(spent, 4), "is_late": is_late}
    print(json.dumps(line | {"compiled": _num_binaries() - before}), flush=True)


def _num_binaries() -> int:
    """Count what Triton has compiled for a device, whatever version it is."""
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    return sum(1 for end in ("cubin", "hsaco") for _ in cache.glob(f"**/*.{end}"))


if __name__ == "__main__":
    main(sys.argv[1])
