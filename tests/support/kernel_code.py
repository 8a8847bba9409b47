"""What the kernels compile to, for architectures that need not be here. Prints JSON.

`python -m tests.support.kernel_code ARCH...` with ARCH like `sm_90` or `gfx942`, in a process
without `TRITON_INTERPRET`. Another Triton is looked at by putting it before the installed one:

    pip install --no-deps --target /tmp/triton-3.5 triton==3.5.0
    PYTHONPATH=/tmp/triton-3.5 python -m tests.support.kernel_code sm_90
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gradwatch._statistics.triton import combine_kernel, norm_kernel, reduce_kernel

FORMATS: Final = ("fp16", "bf16", "fp32", "fp64")
POINTERS: Final = {
    **dict.fromkeys(("addresses", "programs", "segments", "tensors"), "*i64"),
    **dict.fromkeys(("partials", "out"), "*fp64"),
}
"""Types of the arguments that are pointers; the others are numbers of 32 bits, but those of hooks'
kernels, of 64."""

KERNELS: Final[dict[str, tuple[Any, int]]] = {
    "reduce_segments": (reduce_kernel.reduce_segments, reduce_kernel.THREADS),
    "combine_segments": (combine_kernel.combine_segments, combine_kernel.THREADS),
    "norm_parts": (norm_kernel.norm_parts, reduce_kernel.THREADS),
    "combine_norms": (norm_kernel.combine_norms, norm_kernel.THREADS),
    "keep_larger": (norm_kernel.keep_larger, norm_kernel.THREADS),
}
"""By name: each, and the threads of a program."""

NUM_LOADS: Final = reduce_kernel.TILE_BYTES // (16 * reduce_kernel.THREADS)  # of a thread in a tile
WIDE_PTX: Final = r"ld\.global\S*\.(?:v4\.[bu]32|v2\.[bu]64)"
BINARIES: Final = Path(triton.__file__).parent / "backends/nvidia/bin"


@dataclasses.dataclass(frozen=True, slots=True)
class Syntax:
    """How a disassembly is written."""

    label: str
    instruction: str
    jump: str  # to a label
    load: str
    wide_load: str


SASS: Final = Syntax(
    label=r"\s*(\.L_\w+):",
    instruction=r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;",
    jump=r"\bBRA.*`\((\.L_\w+)\)",
    load=r"\bLDG\b",
    wide_load=r"\bLDG\.E\S*\.128",
)
AMD: Final = Syntax(
    label=r"(\.LBB\w+):",
    instruction=r"\t([a-z]\w+.*)",
    jump=r"s_c?branch\w*\s+(\.LBB\w+)",
    load=r"(?:global|buffer)_load_",
    wide_load=r"(?:global|buffer)_load_dwordx4",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Code:
    """One kernel for one architecture.

    Args:
        arch: As in `sm_90` and `gfx942`.
        kernel: Name of the function.
        format: Of the elements, empty where there is none.
        instructions: Of a thread in the main loop, that is for one tile.
        loads: Those of a thread in it.
        wide_loads: Those of 16 bytes among them.
        registers: Of a thread.
        spilled: Bytes of local memory of a thread.
    """

    arch: str
    kernel: str
    format: str
    instructions: int
    loads: int
    wide_loads: int
    registers: int
    spilled: int


def compiled(arch: str, kernel: str, element: str) -> Code:
    """Compile a kernel ahead of time and read what came out.

    Args:
        arch: As in `Code`.
        kernel: One of `KERNELS`.
        element: The format to reduce, or empty for a kernel that combines.
    """
    function, threads = KERNELS[kernel]
    is_amd = arch.startswith("gfx")
    warp = 64 if is_amd else 32
    target = GPUTarget("hip" if is_amd else "cuda", arch if is_amd else int(arch[3:]), warp)
    made = triton.compile(
        _source(function, {"FORMAT": element} if element else {}),
        target=target,
        options={"num_warps": threads // warp},
    )
    if is_amd:
        syntax, text = AMD, made.asm["amdgcn"]
        registers = _number(r"\.vgpr_count:\s+(\d+)", text)
        spilled = _number(r"\.private_segment_fixed_size:\s+(\d+)", text)
    else:
        syntax, text = SASS, _tool("nvdisasm", made.asm["cubin"])
        usage = _tool("cuobjdump", made.asm["cubin"], "--dump-resource-usage")
        registers = _number(r"\bREG:(\d+)", usage)
        spilled = _number(r"\bSTACK:(\d+)", usage) + _number(r"\bLOCAL:(\d+)", usage)
    loop = _main_loop(text, syntax)
    if not is_amd and element:
        assert re.search(WIDE_PTX, made.asm["ptx"]), "PTX without loads of 16 bytes"
    return Code(
        arch=arch,
        kernel=kernel,
        format=element,
        instructions=len(loop),
        loads=_count(loop, syntax.load),
        wide_loads=_count(loop, syntax.wide_load),
        registers=registers,
        spilled=spilled,
    )


def _source(function: Any, constants: dict[str, str]) -> ASTSource:
    names: Sequence[str] = function.arg_names
    number = "i64" if function.fn.__module__ == norm_kernel.__name__ else "i32"
    signature = {name: POINTERS.get(name, number) for name in names if name not in constants}
    return ASTSource(
        fn=function,
        signature={name: signature.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
    )


def _tool(name: str, cubin: bytes, *options: str) -> str:
    """Return what one of the tools says that come with Triton."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [BINARIES / name, *options, file.name], capture_output=True, text=True, check=True
        )
    return done.stdout


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, pattern
    return int(found[1])


def _main_loop(text: str, syntax: Syntax) -> list[str]:
    """Return the instructions of the shortest loop that has all the loads of a tile."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := re.match(syntax.label, line):
            labels[label[1]] = len(instructions)
        elif instruction := re.match(syntax.instruction, line):
            instructions.append(instruction[1])
    loops = [
        (labels[jump[1]], place)
        for place, each in enumerate(instructions)
        if (jump := re.search(syntax.jump, each)) and labels.get(jump[1], place) < place
    ]
    bodies = [instructions[begin : end + 1] for begin, end in loops]
    full = [body for body in bodies if _count(body, syntax.load) >= NUM_LOADS]
    return min(full, key=len, default=[])


def _count(instructions: Sequence[str], pattern: str) -> int:
    return sum(bool(re.search(pattern, each)) for each in instructions)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for kernel, (function, _) in KERNELS.items():
            for kind in FORMATS if "FORMAT" in function.arg_names else ("",):
                print(json.dumps(dataclasses.asdict(compiled(name, kernel, kind))), flush=True)
