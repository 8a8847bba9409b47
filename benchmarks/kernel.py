"""The CUDA kernels without a GPU: what they compile to, and what a call costs the host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final

from benchmarks.report import show

ARCHITECTURES: Final = ("sm_80", "sm_90", "sm_120", "gfx942")
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
        "kernel, driver calls of the statistics, all addresses being new",
        ("dtypes", "calls", "aim", "which"),
        [
            [
                dtypes,
                str(sum(found[dtypes].values())),
                f"<= {AIM_CALLS[dtypes]}",
                ", ".join(f"{count} {name}" for name, count in found[dtypes].items()),
            ]
            for dtypes in AIM_CALLS
        ],
        "Addresses that are those of the last call need the launches only. The aim is that of all "
        "of collect(), whose packing and read-back come on top and are not counted here.",
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
