"""The runs of all nodes in one list, as a single process would list them."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, cast

import httpx
from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from gradwatch_server.api.problems import Json, Problem
from gradwatch_server.api.run_rows import Listed
from gradwatch_server.api.shared_answer import SharedAnswer
from gradwatch_server.api.summaries import Listing, Summaries
from gradwatch_server.cluster.catalogue.reader import CatalogueReader
from gradwatch_server.cluster.catalogue.summary import KnownRun
from gradwatch_server.cluster.http.proxy import Proxy
from gradwatch_server.cluster.ownership.node_record import NodeRecord
from gradwatch_wire.health import Phase, Status

logger = logging.getLogger(__name__)

LISTING_PATH: Final = "/cluster/runs"
"""Where a node lists its own runs for the others."""

MAX_SPARKS: Final = 8
"""Sizes of curves for which lists are kept."""

SHARE: Final = 0.2
"""Part of the time that asking all nodes may take."""


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """A run in short, as a node said.

    Args:
        key: When it was last heard of, nanoseconds since the epoch, and its name.
        step: The step of its last frame, -1 without.
        phase: Where it is in its life.
        status: How well it is.
        text: What `/runs` says of it, JSON.
        is_known: Whether an engine has it; if not it is as it was published last.
        number: That of the listing in which it came to be so.
    """

    key: tuple[int, str]
    step: int
    phase: Phase
    status: Status
    text: bytes
    is_known: bool = True
    number: int = field(default=0, compare=False)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is expected of it."""
        return self.phase not in (Phase.WAITING, Phase.RUNNING)

    def row(self, _spark: int | None) -> bytes:
        """Return what `/runs` says of it; the curve is in it that was asked for."""
        return self.text


class Listings:
    """Lists runs, for one event loop.

    Args:
        live: Returns the nodes that have a lease.
        node: Id of this one.
        proxy: Asks others.
        token: What lets it read there; None where anyone may.
        catalogue: What owners published of their runs.
        idle: Returns the partitions of this node that have no engine, and those without an owner.
    """

    def __init__(
        self,
        live: Callable[[], Mapping[str, NodeRecord]],
        node: str,
        proxy: Proxy,
        token: str | None,
        catalogue: CatalogueReader,
        idle: Callable[[], tuple[Collection[int], Collection[int]]],
    ) -> None:
        self.summaries: Summaries | None = None
        """The runs of this node, once its app is there."""
        self._live = live
        self._node = node
        self._proxy = proxy
        self._token = token
        self._catalogue = catalogue
        self._idle = idle
        self._shared: OrderedDict[int | None, SharedAnswer[Listing[Listed]]] = OrderedDict()
        self._newest: dict[int | None, Listing[RemoteRun]] = {}
        self._of_nodes: dict[tuple[str, int | None], list[RemoteRun]] = {}

    async def list_runs(self, spark: int | None) -> Listing[Listed]:
        """Return all runs, each with a curve of so many values if that is given."""
        shared = self._shared.get(spark)
        if shared is None:
            shared = self._shared[spark] = SharedAnswer(partial(self._gather, spark), lambda: SHARE)
        self._shared.move_to_end(spark)
        if len(self._shared) > MAX_SPARKS:
            self._shared.popitem(last=False)
        return await shared.get()

    async def answer_own(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell another node of the runs of this one."""
        given = QueryParams(scope["query_string"]).get("spark")
        if given is not None and not (given.isdecimal() and len(given) < 4):
            await Problem(422, "query spark: a number")(scope, receive, send)
            return
        spark = None if given is None else int(given)
        known = ((own, True) for own in await self._summaries())
        published = ((own, False) for own in await self._published(self._idle()[0], spark))
        rows = [
            {
                "key": own.key,
                "step": own.step,
                "phase": own.phase,
                "status": own.status,
                "text": own.row(spark).decode("ascii"),
                "is_known": is_known,
            }
            for own, is_known in (*known, *published)
        ]
        await Json(rows)(scope, receive, send)

    async def _summaries(self) -> tuple[Any, ...]:
        return () if self.summaries is None else await self.summaries.all()

    async def _published(self, partitions: Collection[int], spark: int | None) -> list[RemoteRun]:
        """Return the runs of partitions for which no engine answers, as they were published."""
        return [_unknown(own, spark) for own in await self._catalogue.of(partitions)]

    async def _gather(self, spark: int | None) -> Listing[Listed]:
        nodes = self._live()
        asked = (self._ask(record, spark) for record in nodes.values() if record.id != self._node)
        own = [
            RemoteRun(each.key, each.step, each.phase, each.status, each.row(spark))
            for each in await self._summaries()
        ]
        here, nowhere = self._idle()
        published = await self._published({*here, *nowhere}, spark)
        found: dict[str, RemoteRun] = {}
        for runs in (*await asyncio.gather(*asked), own, published):
            for run in runs:
                known = found.get(run.key[1])
                # It moves from one to another just now.
                if known is None or (run.is_known, run.key) > (known.is_known, known.key):
                    found[run.key[1]] = run
        before = self._newest.get(spark, Listing())
        kept = {run.key[1]: run for run in before.runs}
        next_ = before.number + 1
        numbered = {
            name: kept[name] if kept.get(name) == run else replace(run, number=next_)
            for name, run in found.items()
        }
        newest = self._newest[spark] = before.next(numbered)
        self._forget(nodes)
        return cast("Listing[Listed]", newest)

    def _forget(self, nodes: Collection[str]) -> None:
        """Forget what was kept of nodes that are gone, and of curves that nobody asked for long."""
        self._of_nodes = {
            (node, spark): runs
            for (node, spark), runs in self._of_nodes.items()
            if node in nodes and spark in self._shared
        }
        self._newest = {of: own for of, own in self._newest.items() if of in self._shared}

    async def _ask(self, record: NodeRecord, spark: int | None) -> list[RemoteRun]:
        """Return the runs of another node: those that it had, if it does not answer."""
        query = "" if spark is None else f"?spark={spark}"
        try:
            answer = await self._proxy.get(f"{record.http}{LISTING_PATH}{query}", self._token)
            answer.raise_for_status()
            runs = [_run_of(plain) for plain in answer.json()]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            logger.debug("the runs of node %s are those that it had: %s", record.id, error)
            return self._of_nodes.get((record.id, spark), [])
        self._of_nodes[record.id, spark] = runs
        return runs


def _run_of(plain: dict[str, Any]) -> RemoteRun:
    updated_ns, name = plain["key"]
    text = plain["text"].encode("ascii")
    key, step, is_known = (int(updated_ns), str(name)), int(plain["step"]), bool(plain["is_known"])
    return RemoteRun(key, step, Phase(plain["phase"]), Status(plain["status"]), text, is_known)


def _unknown(own: KnownRun, spark: int | None) -> RemoteRun:
    text = own.row_without_owner(with_curve=spark is not None)
    return RemoteRun((own.heard_ns, own.run), own.step, own.phase, Status.UNKNOWN, text, False)
