"""Reads what owners published, for one event loop that a ledger which hangs must not hold up."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection
from typing import Final, TypeVar

from gradwatch_server.cluster.catalogue.summary import KnownRun, decode_run
from gradwatch_server.storage.ledger import RunCatalogue
from gradwatch_server.storage.store import StorageError

logger = logging.getLogger(__name__)

READ_S: Final = 2.0
"""How long somebody who asks for something else waits for it."""

MAX_READS: Final = 2
"""Reads at a time; whoever comes while so many hang does without."""

T = TypeVar("T")


class CatalogueReader:
    """The published runs. Where the ledger does not answer, nothing is known of them.

    Args:
        catalogue: Where they are.
        is_away: Tells whether it is known that the ledger does not answer.
    """

    def __init__(self, catalogue: RunCatalogue, is_away: Callable[[], bool]) -> None:
        self._catalogue = catalogue
        self._is_away = is_away
        self._free = threading.Semaphore(MAX_READS)
        self._known: dict[int, list[KnownRun]] = {}

    async def get(self, run: str) -> KnownRun | None:
        """Return what was published last of a run, None if nothing is known of it."""
        found = await self._read(lambda: self._catalogue.get(run))
        return None if found is None else decode_run(found)

    async def of(self, partitions: Collection[int]) -> list[KnownRun]:
        """Return the runs of some partitions: those that were known, if they cannot be read."""
        wanted = sorted(partitions)
        if not wanted:
            return []
        found = await self._read(lambda: self._catalogue.of_partitions(wanted))
        if found is not None:
            self._known = {number: [] for number in wanted}
            for own in found:
                if (known := decode_run(own)) is not None:
                    self._known[own.partition].append(known)
        return [own for number in wanted for own in self._known.get(number, ())]

    async def _read(self, read: Callable[[], T]) -> T | None:
        """Return what is read in a thread; None if that fails, hangs, or cannot be begun."""
        if self._is_away() or not self._free.acquire(blocking=False):
            return None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T | None] = loop.create_future()

        def put(found: T | None) -> None:
            if not answer.done():
                answer.set_result(found)

        def run() -> None:
            found: T | None = None
            try:
                found = read()
            except StorageError as error:
                logger.debug("what was published of runs cannot be read: %s", error)
            finally:
                self._free.release()
            if not loop.is_closed():
                loop.call_soon_threadsafe(put, found)

        # Not one of a pool, which the end of the process would wait for.
        threading.Thread(target=run, name="gradwatch-catalogue-read", daemon=True).start()
        try:
            return await asyncio.wait_for(answer, READ_S)
        except TimeoutError:
            return None
