"""Aims on a GPU, and the verdict on each aim from the lines of all stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final

DEVICE_FLOAT32: Final = 1.25
DEVICE_BFLOAT16: Final = 1.6
"""Times one read of the same bytes."""

HOST_US: Final = 150.0
"""For 148 tensors at new addresses."""

STEP_PERCENT: Final = 1.0


class Aim(Enum):
    """Each has lines in some stage as evidence."""

    DEVICE_FLOAT32 = f"device time, float32: at most {DEVICE_FLOAT32:g} x one read"
    DEVICE_BFLOAT16 = f"device time, bfloat16: at most {DEVICE_BFLOAT16:g} x one read"
    HOST = f"host time, 148 tensors: at most {HOST_US:g} us"
    STEP = f"a step of GPT-2 124M: at most {STEP_PERCENT:g} % longer"
    NO_WAIT = "nothing waits for the device"
    SENDER = "the sender's thread makes no CUDA call"
    NUMBERS = "the numbers are right, the tests pass: also of captures, and of what is compiled"
    ARRIVAL = "every record has the numbers of its own step"
    MEMORY = "memory does not grow"


HELD, MISSED, NOT_MEASURED = "held", "MISSED", "not measured"


def verdicts(rows: Iterable[Mapping[str, Any]]) -> dict[Aim, str]:
    """Return for each aim whether all lines about it passed; without any it was not measured."""
    known = [(row["aim"], row["passed"]) for row in rows if row["passed"] is not None]
    found: dict[Aim, str] = {}
    for aim in Aim:
        own = [passed for name, passed in known if name == aim.name]
        found[aim] = NOT_MEASURED if not own else HELD if all(own) else MISSED
    return found
