"""One measurement of five tensors, for tools that watch a process: `one_call cuda`."""

from __future__ import annotations

import sys

import torch

from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import MEASURED_COLUMNS

SIZES = (1, 4097, 100_000, 2_000_000, 8)


def main(device: str, scale: int = 1) -> None:
    """Measure."""
    made = [torch.ones(scale * size + 1, device=device)[1:] for size in SIZES]
    made[2] = made[2].bfloat16()
    found = statistics(made, MEASURED_COLUMNS)
    print(found.path, found.declined, found.values["zeros"].tolist())


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))
