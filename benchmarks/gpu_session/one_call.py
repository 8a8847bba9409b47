"""Five tensors measured together, and one by one as in hooks: `one_call cuda`, for tools."""

from __future__ import annotations

import sys

import torch

from gradwatch._statistics.norm_slots import Expected, NormSlots
from gradwatch._statistics.single import measure_norm
from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import MEASURED_COLUMNS

SIZES = (1, 4097, 100_000, 2_000_000, 8)


def main(device: str) -> None:
    """Measure."""
    made = [torch.ones(size + 1, device=device)[1:] for size in SIZES]
    made[2] = made[2].bfloat16()
    found = statistics(made, MEASURED_COLUMNS)
    slots = NormSlots(Expected(each.device, (each.dtype,), 4 * each.numel()) for each in made)
    for index, each in enumerate(made):
        slots.keep(index, measure_norm(each, slots, index))
    print([float(norm) for norm in slots.take(range(len(made))).values()])
    print(found.path, found.declined, found.values["zeros"].tolist())


if __name__ == "__main__":
    main(sys.argv[1])
