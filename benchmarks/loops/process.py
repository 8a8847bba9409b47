"""One rank of one loop: all its trials in turn. `python -m benchmarks.loops.process NAME FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from benchmarks.loops.registry import loops
from benchmarks.loops.trial import VARIANTS, run_trial


def main(name: str, file: str) -> None:
    """Run the trials of a loop and write what is true of them to a file."""
    torch.set_num_threads(1)
    loop = loops()[name]
    makes_group = loop.ranks > 1 and loop.has_group
    if makes_group:
        torch.distributed.init_process_group("gloo")
    results = [run_trial(loop, variant) for variant in VARIANTS]
    Path(file).write_text(json.dumps(results), "utf-8")
    if makes_group:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
