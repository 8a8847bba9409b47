"""Greedy peers: each makes one thing grow as fast as it can, beside a run that is honest.

They speak the protocol as everybody does, so all that is promised is promised to them, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any, Final

from gradwatch_server.budgets import Budgets
from gradwatch_wire import Column, Hello, Manifest, Record, Stats
from gradwatch_wire.codec import encode_body
from gradwatch_wire.session.driver import send_due
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session
from simulation.invariants import Account, InvariantChecker, key_of
from simulation.network import Network, Socket

KIB: Final = 1 << 10

SMALL: Final[dict[str, Any]] = {
    "runs": 8,
    "attempts_per_min": 30,
    "run_bytes": 2_048 * KIB,
    "total_bytes": 2_560 * KIB,
    "alert_events_per_min": 1,
}
"""Budgets where somebody is greedy, also smaller than they may be set: a greedy peer reaches them,
an honest run does not."""

AFTER_A_ROUND: Final = frozenset({"run_bytes", "total_bytes"})
"""Budgets that a batch may exceed, until the next round."""

MOST: Final = 80
"""Things that a greedy peer does until it has enough."""

AT_ONCE: Final = 4
"""Things that it does in a tick, at most."""

MAX_SENDING: Final = 12
"""Sessions that it goes on with, the newest."""

BUFFER_BYTES: Final = 32 * KIB


def small_budgets() -> Budgets:
    return Budgets.model_construct(**SMALL)


class GreedyPeer:
    """One connection, and whatever sessions it opens."""

    def __init__(
        self, kind: str, random: Random, network: Network, invariants: InvariantChecker
    ) -> None:
        self.kind = kind
        self._act: Callable[[int], None] = {
            "names": self._open_run,
            "attempts": self._begin_attempt,
            "wide": self._step_alone,
            "descending": self._step_back,
            "flapping": self._flap,
            "manifests": self._declare,
        }[kind]
        self._random = random
        self._invariants = invariants
        self._socket = Socket(network, random)
        self._sessions: list[Session[Outbox]] = []
        self._accounts: list[Account] = []
        self._num_done = 0

    def tick(self, now_s: float, *, reachable: bool) -> None:
        """Take a little more, and do a round of sending."""
        self._socket.connect(now_s, reachable=reachable)
        for envelope in self._socket.receive(now_s):
            for session in self._sessions:
                if session.receive(envelope, now_s):
                    break
        for _ in range(self._random.randint(0, AT_ONCE)):
            if self._num_done < MOST:
                self._act(self._num_done)
                self._num_done += 1
        for session in self._sessions[-MAX_SENDING:]:
            session.alerts.clear()
            send_due(session, lambda message: self._socket.send(message, now_s), now_s)

    def leave(self) -> None:
        self._socket.close()
        for account in self._accounts:
            account.is_over = True

    # What it does.

    def _open_run(self, number: int) -> None:
        self._open(run=f"greedy-{number}")

    def _begin_attempt(self, number: int) -> None:
        self._open(job=str(number))

    def _step_alone(self, number: int) -> None:
        """Take steps of a run in which all others are missing."""
        if not self._sessions:
            self._open(world=65_536)
            self._append(_manifest(1, 8))
        self._append(_stats(number, 1, [1.0] * 8))

    def _step_back(self, number: int) -> None:
        if not self._sessions:
            self._open(world=2)
            self._append(_manifest(1, 8))
        self._append(_stats(2 * MOST - number, 1, [1.0] * 8))

    def _flap(self, number: int) -> None:
        """Have numbers that are bad in every other step."""
        if not self._sessions:
            self._open()
            self._append(_manifest(1, 8))
        self._append(_stats(number, 1, [(1.0, math.nan, math.inf, 1e-30)[number % 4]] * 8))

    def _declare(self, number: int) -> None:
        """Name other layers for each step."""
        if not self._sessions:
            self._open()
        self._append(_manifest(number + 1, 24))
        self._append(_stats(number, number + 1, [1.0] * 24))

    def _open(self, **changes: Any) -> None:
        settings: dict[str, Any] = {"run": "greedy", "rank": 0, "world": 1, "job": "greedy"}
        hello = Hello(**settings | changes)
        session_id = self._random.randbytes(16)
        outbox = Outbox(BUFFER_BYTES)
        self._sessions.append(Session(session_id, hello, outbox))
        account = Account(f"{self.kind} {session_id[:2].hex()}", outbox, None, BUFFER_BYTES)
        account.is_greedy = True
        self._accounts.append(account)
        self._invariants.accounts[session_id] = account

    def _append(self, record: Record) -> None:
        outbox, account = self._sessions[-1].source, self._accounts[-1]
        outbox.append(record, 0)
        account.made.append(key_of(record))
        if isinstance(record, Manifest):
            account.manifests[outbox.buffer.last] = len(encode_body(record)[1])


def _manifest(number: int, layers: int) -> Manifest:
    return Manifest(
        manifest_id=number,
        names=tuple(f"layer {number}.{place:040}" for place in range(layers)),
        numel=Column.pack("<u8", [10] * layers),
        dtypes=("float32",) * layers,
        order="forward",
    )


def _stats(step: int, manifest_id: int, l2: list[float]) -> Stats:
    return Stats(manifest_id=manifest_id, step=step, columns={"l2": Column.pack("<f8", l2)})
