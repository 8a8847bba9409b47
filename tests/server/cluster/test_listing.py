"""The runs of all nodes: what is kept of them has a bound."""

from __future__ import annotations

import asyncio
from typing import cast

from gradwatch_server.cluster.catalogue.reader import CatalogueReader
from gradwatch_server.cluster.http.listing import MAX_SPARKS, Listings
from gradwatch_server.cluster.http.proxy import Proxy
from gradwatch_server.cluster.ownership.node_record import NodeRecord
from gradwatch_server.storage.ledger import RunCatalogue
from tests.server.cluster.conftest import NewServer

NO_CATALOGUE = CatalogueReader(cast("RunCatalogue", None), lambda: True)


def nothing_is_idle() -> tuple[list[int], list[int]]:
    return [], []


def test_lists_with_curves_that_nobody_asks_for_any_more_are_forgotten(serve: NewServer) -> None:
    other = Listings(dict, "b", Proxy("b"), None, NO_CATALOGUE, nothing_is_idle)
    record = NodeRecord("b", "0.1", f"http://127.0.0.1:{serve(other.answer_own)}", "tcp://b:1")

    async def ask() -> Listings:
        proxy = Proxy("a")
        listings = Listings(lambda: {"b": record}, "a", proxy, None, NO_CATALOGUE, nothing_is_idle)
        for spark in range(2 * MAX_SPARKS):
            await listings.list_runs(spark)
        await proxy.close()
        return listings

    listings = asyncio.run(ask())
    kept = range(MAX_SPARKS, 2 * MAX_SPARKS)
    assert listings._of_nodes.keys() == {("b", spark) for spark in kept}
    assert listings._newest.keys() == set(kept)
