"""What a node does not reach any more, and when it is time to look for another NATS server.

It has neither clock nor connection: it is given the time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from typing import Final

SILENT_S: Final = 1.5
"""What was not heard of for so long is missing: some beats, or two questions."""

PAUSE_S: Final = 0.5
"""Pause after a look in vain, at least half of it; each further one is twice as long."""

MAX_PAUSE_S: Final = 8.0

REST_S: Final = 5.0
"""How long a node stays at a server to which it went, at least."""


class Missing:
    """What was reached, and when it is looked for a server that reaches more.

    `note` is for any thread, all else for one.

    Args:
        random_: Where pauses come from: nodes that miss the same are not to look at the same time.
    """

    def __init__(self, random_: random.Random | None = None) -> None:
        self._random = random_ or random.Random()  # noqa: S311 - no secret
        self._lock = threading.Lock()
        self._reached_s: dict[str, float] = {}
        self._pause_s = PAUSE_S
        self._quiet_until_s = float("-inf")

    def note(self, reached: Iterable[str], now_s: float) -> None:
        """Note what was reached just now."""
        with self._lock:
            self._reached_s.update(dict.fromkeys(reached, now_s))

    def find(self, expected: Iterable[str], now_s: float) -> frozenset[str]:
        """Return what is missing of what is expected; all else is forgotten.

        What was never reached is not missing: a node of an earlier version does not beat.
        """
        with self._lock:
            known = self._reached_s
            self._reached_s = {own: known[own] for own in expected if own in known}
            found = self._reached_s.items()
            return frozenset(own for own, at_s in found if now_s - at_s > SILENT_S)

    def is_to_look(self, missing: frozenset[str], now_s: float) -> bool:
        """Tell whether it is time to look for another server."""
        if not missing:
            self._pause_s = PAUSE_S
        return bool(missing) and now_s >= self._quiet_until_s

    def looked(self, now_s: float, *, has_moved: bool) -> None:
        """Note that it was looked for one, and whether one was found."""
        longest_s = REST_S if has_moved else self._pause_s
        self._pause_s = PAUSE_S if has_moved else min(MAX_PAUSE_S, 2 * self._pause_s)
        least_s = longest_s if has_moved else longest_s / 2
        self._quiet_until_s = now_s + least_s + self._random.uniform(0.0, longest_s / 2)
