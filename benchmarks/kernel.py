"""The CUDA kernels without a GPU: what they compile to, and what a call costs the host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from benchmarks.report import show

ARCHITECTURES: Final = ("sm_80", "sm_90", "sm_120", "gfx942")
CAPTURE_QUERY: Final = "capture query"
AIM_RATIO: Final = 2.5
AIM_CALLS: Final = {"one": 6, "two": 9}
HOOKS: Final = {
    "local": "local=True, 148 layers",
    "local, two passes": "local=True, 148 layers, two passes accumulated",
    "blocks": "blocks=, 48 blocks",
}
"""By what `kernel_launches` calls them."""


def run(*, quick: bool = False, rounds: int = 300) -> None:
    """Measure and print."""
    architectures = ARCHITECTURES[1:2] if quick else ARCHITECTURES
    codes = _printed("kernel_code", *architectures)
    show(
        f"kernel, Triton {codes[0]['triton']}",
        (
            "architecture",
            "kernel",
            "elements",
            "instr./16 kB",
            "loads",
            "of 16 B",
            "registers",
            "spills",
        ),
        [
            [
                code["arch"],
                code["kernel"],
                code["format"],
                str(2 * code["instructions"]) if code["format"] else "",
                str(code["loads"]),
                str(code["wide_loads"]),
                str(code["registers"]),
                str(code["spilled"]),
            ]
            for code in codes
        ],
        "per 16 kB: instructions of each thread in the main loop; before it was written anew 1,590 "
        "for float32. loads: of each thread in a tile of 8 kB. spilled: bytes.",
    )
    (found,) = _printed("kernel_launches", "2" if quick else str(rounds))
    show(
        "kernel, driver calls of a whole collection, the loss and all addresses being new",
        ("dtypes", "calls", "at most", "aim", "which"),
        [
            [
                dtypes,
                f"{median(map(_number, found[dtypes])):g}",
                f"{max(map(_number, found[dtypes]))}",
                f"<= {AIM_CALLS[dtypes]}",
                ", ".join(f"{count} {name}" for name, count in _mean(found[dtypes]).items()),
            ]
            for dtypes in AIM_CALLS
        ],
        "From the backward pass to the optimizer's step, beyond what the step asks for without a "
        "watch: launches, copies, operations of torch that would launch or copy, events; which: on "
        "average. An event is recorded behind 8 uploads of addresses, and queried before the next "
        "8. Not counted: whether the stream is captured is asked "
        f"{_mean(found['one'], but='')[CAPTURE_QUERY]} times, which enqueues nothing.",
        "Variants compiled at attach, and in 60 steps with as many sets of layers: "
        + ", ".join(f"{name} {warm} + {late}" for name, (warm, late) in found["variants"].items())
        + "; the first includes the kernel that combines.",
    )
    show(
        "kernel, driver calls of hooks in a step, all addresses being new",
        ("hooks", "calls", "which"),
        [
            [
                name,
                str(sum(found[key].values())),
                ", ".join(f"{count} {kind}" for kind, count in found[key].items()),
            ]
            for key, name in HOOKS.items()
        ],
        "One launch for each, and one for all where the norms are taken. They join the columns of "
        "the record then, which is not counted here.",
        "Variants compiled at attach, and after that: "
        + ", ".join(
            f"{name} {warm} + {late}" for name, (warm, late) in found["norm_variants"].items()
        )
        + "; the first includes the two kernels that are of no dtype.",
    )
    show(
        "kernel, host time of the statistics with the launches stubbed",
        ("tensors", "bare us", "addresses as before us", "x bare", "new us", "x bare", "aim"),
        [
            [
                number,
                f"{times['bare']:.0f}",
                f"{times['same']:.0f}",
                f"{times['same'] / times['bare']:.2f}",
                f"{times['new']:.0f}",
                f"{times['new'] / times['bare_new']:.2f}",
                f"<= {AIM_RATIO}" if number == "148" else "",
            ]
            for number, times in found["host"].items()
        ],
        "bare: reading grad and data_ptr of each. Medians; binding and lookup of the kernels are "
        "Triton's own, what it would then ask of the driver is left out.",
    )


def _number(calls: Mapping[str, int]) -> int:
    """Return how many calls enqueue something, or ask of it."""
    return sum(count for name, count in calls.items() if name != CAPTURE_QUERY)


def _mean(found: Sequence[Mapping[str, int]], but: str = CAPTURE_QUERY) -> dict[str, str]:
    """Return how often a call was made on average, of all kinds but one."""
    names = dict.fromkeys(name for calls in found for name in calls if name != but)
    return {name: f"{sum(c.get(name, 0) for c in found) / len(found):g}" for name in names}


def _printed(module: str, *arguments: str) -> list[dict[str, Any]]:
    environment = {name: each for name, each in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
