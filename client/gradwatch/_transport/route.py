"""Which of the aggregator's endpoints is in use, and when it is time for the next one."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Final

from gradwatch._faults import Faults, tell
from gradwatch._transport.connection import RECONNECT_MAX_S, RECONNECT_S
from gradwatch._transport.counterpart import Counterpart
from gradwatch_wire.session.timing import BEAT_EVERY_S

SILENT_AFTER_S: Final = 3 * BEAT_EVERY_S
"""It answers each beat: after three without an answer it counts as silent."""


class Route:
    """Goes from one to the next as they are given, and round; stays where it is answered.

    It has neither socket nor clock. Of one endpoint alone it never says that it is time.

    Args:
        endpoints: Where the aggregator listens, the one to begin with first.
        now_s: The time, as in all that follows.
        has_key: Whether this process has a key for it.
        faults: Where it is told what is wrong with one, and once that records go to another.
    """

    def __init__(
        self, endpoints: Sequence[str], now_s: float, *, has_key: bool, faults: Faults
    ) -> None:
        self.num_moves = 0
        self._counterparts = [
            Counterpart(each, has_key=has_key, faults=faults) for each in endpoints
        ]
        self._index = 0
        self._faults = faults
        self._known = endpoints[0]  # where it was when it was told last
        self._looked_s = now_s
        self._silent_s = 0.0
        self._num_silent = 0  # left since the last answer
        self._pause_s = RECONNECT_S
        self._pause_until_s = float("-inf")
        self._random = random.Random()  # noqa: S311 - no secret; that of `random` is the training's

    @property
    def counterpart(self) -> Counterpart:
        """Who listens at the endpoint in use."""
        return self._counterparts[self._index]

    @property
    def endpoint(self) -> str:
        """The endpoint in use."""
        return self.counterpart.endpoint

    @property
    def others(self) -> list[str]:
        """The other endpoints, the next one first."""
        around = self._counterparts[self._index + 1 :] + self._counterparts[: self._index]
        return [each.endpoint for each in around]

    def answered(self, now_s: float) -> None:
        """Note an answer: here it stays."""
        self.counterpart.answered(now_s)
        if self.endpoint != self._known:
            self._tell_move()
        self._silent_s, self._num_silent = 0.0, 0
        self._pause_s, self._pause_until_s = RECONNECT_S, float("-inf")

    def is_to_leave(self, now_s: float, *, is_lost: bool) -> bool:
        """Tell whether it is time for the next one; asked in each round.

        Args:
            now_s: The time.
            is_lost: Whether the connection ended, none is to be had, or the handshake is not let
                finish.
        """
        # If this process slept, nobody was silent meanwhile: nobody was asked anything.
        self._silent_s += min(now_s - self._looked_s, BEAT_EVERY_S)
        self._looked_s = now_s
        if len(self._counterparts) == 1 or now_s < self._pause_until_s:
            return False
        return is_lost or self._silent_s > SILENT_AFTER_S

    def moved(self, now_s: float) -> None:
        """Note that the next one is in use; where all were silent, rest there before going on."""
        self._index = (self._index + 1) % len(self._counterparts)
        self.num_moves += 1
        self._num_silent += 1
        self._silent_s = 0.0
        if (self._num_silent + 1) % len(self._counterparts) == 0:
            self.rest(now_s)

    def rest(self, now_s: float) -> None:
        """Stay for a while, at random and longer each time, as ZeroMQ does between attempts."""
        longest_s = min(RECONNECT_MAX_S, self._pause_s)
        self._pause_s = 2 * longest_s
        self._pause_until_s = now_s + self._random.uniform(longest_s / 2, longest_s)

    def _tell_move(self) -> None:
        """Tell where records go now: the first time so that it is seen, then where one looks."""
        where = f"{self._known} did not answer in time; records go to {self.endpoint}"
        self._known = self.endpoint
        if self._faults.has_told("moved"):
            tell(logging.INFO, where)
        else:
            self._faults.tell_once("moved", where)

    def describe(self, now_s: float) -> str:
        """Say of all endpoints why records are left; those with the same reason together."""
        found: dict[str, list[str]] = {}
        for each in self._counterparts:
            found.setdefault(each.describe(now_s), []).append(each.endpoint)
        return "; ".join(f"{', '.join(where)}: {why}" for why, where in found.items())
