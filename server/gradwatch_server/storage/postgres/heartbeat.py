"""Asks the database once a second whether it answers, so that who waits for it in vain is told.

A server that stands still answers nothing, and its machine keeps the connections up: neither a
time limit that the server keeps nor one of TCP ends such a wait.
"""

from __future__ import annotations

import contextlib
import logging
import select
import threading
import time
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg.pq import ExecStatus

from gradwatch_server.storage.postgres.connections import Connection, Connections
from gradwatch_server.storage.store import StorageError, StorageFault

logger = logging.getLogger(__name__)

EVERY_S: Final = 1.0
"""How often it is asked."""

HANGS_S: Final = 4.0
"""Time after which a question without an answer means that it hangs."""

STATEMENT_S: Final = 120.0
"""How long one statement may take, although others are answered."""

_ENDED: Final = (
    "the ledger %s: a node stood still while it wrote, and others waited for it; ended %d of its "
    "connections, and nothing of what was being written is stored"
)


class Heartbeat:
    """Asks in a thread of its own, from `start` until `stop`.

    Args:
        make: Opens a connection; it waits for no longer than `HANGS_S`.
        pools: Those whose users are told.
        name: What errors call the database.
        question: The statement that it is asked: it ends who stands still in the way of others,
            and answers with a row for each.
    """

    def __init__(
        self,
        make: Callable[[], Connection],
        pools: tuple[Connections, ...],
        name: str,
        question: bytes,
    ) -> None:
        self._make = make
        self._pools = pools
        self._name = name
        self._question = question
        self._since_s: float | None = None  # it hangs
        self._connection: Connection | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gradwatch-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End it, without waiting for an answer."""
        self._stopping.set()

    def check(self) -> None:
        """Make sure that it is not known to hang.

        Raises:
            StorageError: If it is.
        """
        since_s = self._since_s
        if since_s is not None:
            waited_s = time.monotonic() - since_s
            msg = f"the ledger {self._name} has not answered for {waited_s:.0f} s"
            raise StorageError(msg, StorageFault.FAILED)

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            try:
                self._beat(time.monotonic())
            except Exception:
                logger.exception("the ledger could not be asked whether it answers")
        self._let_go()

    def _beat(self, now_s: float) -> None:
        try:
            hangs = not self._answers()
        except psycopg.errors.ConnectionTimeout:
            hangs = True
        except psycopg.Error:  # it says why to whoever asks for something
            hangs = False
            self._let_go()
        if hangs:
            self._let_go()
            if self._since_s is None:
                logger.error("the ledger %s does not answer: who waits is told so", self._name)
            self._since_s = self._since_s or now_s
        elif self._since_s is not None:
            logger.warning("the ledger %s answers again", self._name)
            self._since_s = None
        for pool in self._pools:
            pool.cut(None if hangs else STATEMENT_S)

    def _answers(self) -> bool:
        if self._connection is None:
            self._connection = self._make()
        asked, until_s = self._connection.pgconn, time.monotonic() + HANGS_S
        asked.send_query(self._question)
        poll = select.poll()
        poll.register(asked.socket, select.POLLIN)
        while asked.is_busy():
            if not poll.poll(max(until_s - time.monotonic(), 0.0) * 1e3):
                return False
            asked.consume_input()
        while (result := asked.get_result()) is not None:
            if result.status is ExecStatus.FATAL_ERROR:
                raise psycopg.OperationalError(result.get_error_message())
            if result.ntuples:
                logger.warning(_ENDED, self._name, result.ntuples)
        return True

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()
