"""HTTP of a node: each request goes to what can answer it, here or at the owner of the run."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gradwatch_server.api.problems import Json, Problem
from gradwatch_server.cluster.alerts.notifying import PARTITION
from gradwatch_server.cluster.catalogue.reader import CatalogueReader
from gradwatch_server.cluster.http.condition import Condition
from gradwatch_server.cluster.http.listing import LISTING_PATH, Listings
from gradwatch_server.cluster.http.proxy import FORWARDED, Proxy
from gradwatch_server.cluster.ownership.membership import Membership
from gradwatch_server.cluster.ownership.plan import partition_of
from gradwatch_server.cluster.partitions.host import Host
from gradwatch_server.cluster.partitions.partition import Partition
from gradwatch_server.cluster.unavailable import unavailable
from gradwatch_server.storage.store import AlertEventReader, StorageError

CLUSTER_PATH: Final = "/cluster"
"""Where a node tells who is in the cluster, and who owns what."""

_RUN: Final = re.compile(r"/runs/([^/]+)(/.*)?")
_ALERT: Final = re.compile(r"/alerts/([^/]+)(/ack|/layers)?")
_OF_RUN: Final = frozenset({"/alerts/stream", "/rules"})
"""Paths that the owner of a run answers if their query names one."""

_NOT_ALERTS: Final = frozenset({"stream", "stream-token"})


class Front:
    """The ASGI app of a node.

    Args:
        node_app: Answers what is of no run.
        host: What the node owns.
        membership: Who owns the rest.
        partitions: How many there are.
        alert_events: Those of all partitions.
        listings: The runs of all nodes.
        catalogue: What owners published of their runs.
        proxy: Passes requests on.
        condition: How the node is.
    """

    def __init__(
        self,
        node_app: ASGIApp,
        host: Host,
        membership: Membership,
        partitions: int,
        alert_events: AlertEventReader,
        listings: Listings,
        catalogue: CatalogueReader,
        proxy: Proxy,
        condition: Condition,
    ) -> None:
        self._node_app = node_app
        self._host = host
        self._membership = membership
        self._partitions = partitions
        self._alert_events = alert_events
        self._listings = listings
        self._catalogue = catalogue
        self._proxy = proxy
        self._condition = condition

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            try:
                await self._node_app(scope, receive, send)
            finally:
                await self._proxy.close()
        elif scope["type"] == "http":
            app = await self._app_for(scope)
            await app(scope, receive, send)

    async def _app_for(self, scope: Scope) -> ASGIApp:
        path = scope["path"]
        if path == "/readyz":
            return self._ready()
        if path == LISTING_PATH:
            return self._listings.answer_own
        if path == CLUSTER_PATH:
            run = _asked_run(scope)
            return Json(self._describe() if run is None else self._place_of(run))
        if path == "/notifiers":
            return self._owners_app(PARTITION, scope) or self._node_app
        try:
            run = await self._run_of(scope, path)
        except StorageError as error:
            return unavailable(f"PostgreSQL: {error}")
        if run is None:
            return self._node_app
        return self._app_of(run, scope) or await self._elsewhere(path, run)

    async def _run_of(self, scope: Scope, path: str) -> str | None:
        """Return the run that a request is about, None if about none that is known."""
        if found := _RUN.fullmatch(path):
            return found[1]
        if path in _OF_RUN:
            return _asked_run(scope)
        found = _ALERT.fullmatch(path)
        if found is None or found[1] in _NOT_ALERTS:
            return None
        events = await run_in_threadpool(self._alert_events.of_alert, found[1])
        return events[-1].run if events else None

    def _app_of(self, run: str, scope: Scope) -> ASGIApp | None:
        """Return what answers about a run, None if nothing does just now."""
        number = partition_of(run, self._partitions)
        own = self._own(number)
        if own is not None:
            return None if own.running is None else own.running.app
        return self._owners_app(number, scope, run)

    def _own(self, number: int) -> Partition | None:
        """Return a partition if this node owns it; without a lease another one may by now."""
        return self._host.owned.get(number) if self._membership.has_lease() else None

    def _owners_app(self, number: int, scope: Scope, run: str | None = None) -> ASGIApp | None:
        """Return what passes a request on to the owner of a partition, None if there is none."""
        owner = self._membership.owner_of(number)
        if owner is not None and owner.id == self._membership.node:
            return None
        if owner is None or FORWARDED in Headers(scope=scope):
            return None

        async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
            if not await self._proxy.pass_on(owner.http, scope, receive, send):
                why = "the node that owns this does not answer"
                app = unavailable(why) if run is None else await self._last_known(run, why)
                await app(scope, receive, send)

        return pass_on

    async def _elsewhere(self, path: str, run: str) -> ASGIApp:
        """Return what says why nothing answers about a run, or does without its engine."""
        if path in _OF_RUN:
            return self._node_app
        own = self._own(partition_of(run, self._partitions))
        if own is None:
            return await self._last_known(run, "the partition of this run has no owner just now")
        if own.awaits_engine:
            why = own.fault or "the partition of this run is being read"
            return await self._last_known(run, why)
        return Problem(404, f"no run {run[:80]!a}; /runs has those that are")

    async def _last_known(self, run: str, why: str) -> ASGIApp:
        """Return what says why a run cannot be answered for, and how it was when it last could."""
        known = await self._catalogue.get(run)
        return unavailable(why, last_summary=None if known is None else known.last_summary())

    def _describe(self) -> dict[str, Any]:
        """Return who is in the cluster, and who owns what, as this node knows it."""
        membership = self._membership
        owners = {number: membership.owner_of(number) for number in range(self._partitions)}
        return {
            "node": membership.node,
            "nodes": [asdict(record) for record in membership.live.values()],
            "partitions": self._partitions,
            "owners": {str(number): own and own.id for number, own in owners.items()},
            "engines": [
                number for number, own in self._host.owned.items() if own.running is not None
            ],
        }

    def _place_of(self, run: str) -> dict[str, Any]:
        """Return who owns a run, which need not exist, as this node knows it."""
        number = partition_of(run, self._partitions)
        owner = self._membership.owner_of(number)
        return {"run": run, "partition": number, "owner": owner and owner.id}

    def _ready(self) -> ASGIApp:
        fault = self._condition.fault
        if fault is not None:
            return Problem(503, fault)
        return Json({"status": "ready"} | self._condition.notes())


def _asked_run(scope: Scope) -> str | None:
    """Return the run that a query names."""
    query = parse_qs(scope["query_string"].decode("latin-1"))
    return query["run"][0] if "run" in query else None
