"""A device that is not there: writes numbers into a shared file, element by element, in any order.

Run as `python late_writer.py FILE`; lines on stdin are `first element, count, seed`.
"""

from __future__ import annotations

import mmap
import random
import sys
import time
from pathlib import Path

ABSENT = 0x7FF8_6762_7361_6E74
SPECIAL = (
    *(0x7FF0_0000_0000_0000, 0xFFF0_0000_0000_0000, 0x7FF8_0000_0000_0000),  # Inf, -Inf, NaN
    *(0xFFF8_0000_0000_0000, 0x7FF0_0000_0000_0001, 1, 0x8000_0000_0000_0000, 0),
    *(ABSENT - 1, ABSENT + 1, ABSENT ^ (1 << 63), ABSENT >> 8, (ABSENT << 8) & (2**64 - 1)),
    *(ABSENT >> 32, (ABSENT << 32) & (2**64 - 1), 2**64 - 1),
)


def numbers_of(seed: int, count: int) -> list[int]:
    dice = random.Random(seed)
    made = [
        dice.choice(SPECIAL) if dice.random() < 0.5 else dice.getrandbits(64) for _ in range(count)
    ]
    return [0 if each == ABSENT else each for each in made]


def main(path: str) -> None:
    with Path(path).open("r+b") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
    for line in sys.stdin:
        first, count, seed = map(int, line.split())
        numbers = numbers_of(seed, count)
        order = list(range(count))
        random.Random(seed + 1).shuffle(order)
        pause = seed % (3 * count)  # in the middle of one copy of three
        for number, place in enumerate(order):
            if number == pause:
                time.sleep(1e-4)
            memory[first + place] = numbers[place]


if __name__ == "__main__":
    main(sys.argv[1])
