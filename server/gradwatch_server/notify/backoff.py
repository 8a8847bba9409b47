"""How long to wait after failures in a row."""

from __future__ import annotations

import random
from typing import Final

FIRST_S: Final = 1.0

MOST_S: Final = 300.0


def backoff_s(num_failures: int) -> float:
    """Return a random time in the upper half of what doubles with each failure, seconds.

    Random, so that targets that failed together do not come back together.
    """
    longest_s = min(MOST_S, FIRST_S * 2.0 ** min(num_failures - 1, 30))
    return random.uniform(longest_s / 2, longest_s)  # noqa: S311 - no secret
