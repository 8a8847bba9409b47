"""Gains of blocks and ratios of groups: as they are now, and as curves where there are some."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from gradwatch_server.api import safetensors
from gradwatch_wire import Column, Gains
from tests.page.feeding import LAYERS, STEPS, more
from tests.support.aggregator import Aggregator
from tests.support.peer import Peer

BLOCKS: Final = ("h.0", "h.1", "h.2")
GROUPS: Final = {"seed": (0,), "host": (len(LAYERS) - 1,)}


def _curves(query: dict[str, list[str]]) -> bytes:
    """Return curves of what a query names, as an aggregator that keeps them answers."""
    (kind,) = {"block", "group"} & set(query)
    steps = np.arange(60, dtype="<u4")
    arrays = {"step": steps, "time": steps.astype("<f8")}
    for at in range(len(query[kind])):
        for name in ("min", "max", "mean", "last"):
            arrays[f"{at}.{name}"] = np.full(60, at + 1.5)
    labels = [{kind: name, "column": query["column"][0]} for name in query[kind]]
    facts = {"series": labels, "width": 1, "last_step": 59, "revision": 1, "boot": "x"}
    return safetensors.encode(arrays, facts)


def _keep_curves(shown: Any, asked: list[dict[str, list[str]]]) -> None:
    """Let the aggregator be one that keeps such curves, and says how long a step usually takes."""

    def series(route: Any) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        if {"block", "group"} & set(query):
            asked.append(query)
            route.fulfill(body=_curves(query), content_type="application/octet-stream")
        else:
            route.fallback()

    def health(route: Any) -> None:
        answer = route.fetch()
        body = answer.json() | {"usual_step_time_s": 0.19, "last_good_step": 58}
        route.fulfill(response=answer, body=json.dumps(body))

    shown.page.route("**/series?*", series)
    shown.page.route("**/runs/gpt/health", health)


@pytest.fixture
def fed(aggregator: Aggregator, peers: Any) -> Peer:
    peer: Peer = peers(aggregator.ingest, run="gpt").attach(LAYERS, groups=GROUPS)
    norms = Column.pack("<f8", [6.0, 2.0, 4.0])
    peer.send(Gains(step=STEPS - 1, blocks=BLOCKS, norm_type="l2", norms=norms))
    more(peer, range(STEPS))
    aggregator.shows(peer)
    return peer


def test_gains_and_groups_are_those_of_the_api(tab: Any, fed: Peer, aggregator: Aggregator) -> None:
    shown = tab("/?run=gpt")
    bars = shown.page.locator("svg.gains rect title")
    bars.nth(1).wait_for(state="attached")
    gains = aggregator.json("/runs/gpt/gains")
    told = [(f"{own['from']} from {own['to']}", own["gain"]) for own in gains["transitions"]]
    drawn = [text.rpartition(": ") for text in bars.all_text_contents()]
    assert [(name, float(gain)) for name, _, gain in drawn] == told
    groups = aggregator.json("/runs/gpt/groups")
    rows = shown.page.locator("section[aria-label=Groups] tbody tr")
    assert {row.locator("th").inner_text() for row in rows.all()} == set(GROUPS)
    assert {own["name"] for own in groups["groups"]} == set(GROUPS)
    keeps_curves = "usual_step_time_s" in aggregator.health("gpt")
    if not keeps_curves:
        assert shown.page.locator(".columns .chart:visible").count() == 0


def test_their_curves_are_shown_where_the_aggregator_keeps_some(tab: Any, fed: Peer) -> None:
    asked: list[dict[str, list[str]]] = []
    shown = tab("/")
    _keep_curves(shown, asked)
    shown.page.goto(f"{shown.url}/?run=gpt")
    shown.page.locator(".columns .u-over").nth(1).wait_for(state="attached")
    value = shown.page.locator(".columns .title .value")
    assert value.first.inner_text() == "h.0 1.50 · h.1 2.50"
    blocks = next(query for query in asked if "block" in query)
    assert (blocks["block"], blocks["column"]) == (["h.0", "h.1"], ["gain"])
    groups = next(query for query in asked if "group" in query)
    assert groups["column"] == ["ratio"]
    assert all("/" in pair for pair in groups["group"])
    assert "usual 190 ms" in shown.text(".verdict .facts")
    assert "last good step 58" in shown.text(".verdict .facts")
