"""The stages, in the order in which they run: the cheapest and most telling first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Stage:
    """What is run in a process of its own.

    Args:
        title: What it shows.
        module: Module beside this one, with `run(device, rows)`.
        limit_s: Seconds after which it is ended; what it found until then is kept.
    """

    title: str
    module: str
    limit_s: float


STAGES: Final = (
    Stage("versions, and what the memory gives", "ceilings", 30),
    Stage("the numbers are right, the tests pass", "correctness", 150),
    Stage("what is compiled, and when", "compilation", 60),
    Stage("time on the device", "device_time", 120),
    Stage("time on the host, and the calls into CUDA by thread", "host_time", 60),
    Stage("a training step of GPT-2 124M", "step_time", 180),
    Stage("no wait for the device", "waits", 40),
    Stage("captures of CUDA graphs", "captures", 40),
    Stage("every record has the numbers of its own step", "arrival", 40),
    Stage("memory over 1,000 steps", "memory", 30),
)
"""A stage's number is its place."""
