"""Gains of blocks and ratios of groups: as they are now, and as curves where there are some."""

from __future__ import annotations

from typing import Final

import pytest

from gradwatch_wire import Column, Gains
from tests.page.browsing import OpenTab
from tests.page.feeding import LAYERS, STEPS, more
from tests.support.aggregator import Aggregator
from tests.support.peer import Peer

BLOCKS: Final = ("h.0", "h.1", "h.2")
GROUPS: Final = {"seed": (0,), "host": (len(LAYERS) - 1,)}


@pytest.fixture
def fed(aggregator: Aggregator) -> Peer:
    peer: Peer = aggregator.peer(run="gpt").attach(LAYERS, groups=GROUPS)
    norms = Column.pack("<f8", [6.0, 2.0, 4.0])
    for step in range(STEPS):
        peer.send(Gains(step=step, blocks=BLOCKS, norm_type="l2", norms=norms))
    more(peer, range(STEPS))
    aggregator.shows(peer)
    return peer


def test_gains_and_groups_are_those_of_the_api(
    tab: OpenTab, fed: Peer, aggregator: Aggregator
) -> None:
    shown = tab("/?run=gpt")
    bars = shown.page.locator("svg.gains rect title")
    bars.nth(1).wait_for(state="attached")
    gains = aggregator.json("/runs/gpt/gains")
    told = [
        (f"{transition['from']} from {transition['to']}", transition["gain"])
        for transition in gains["transitions"]
    ]
    drawn = [text.rpartition(": ") for text in bars.all_text_contents()]
    assert [(name, float(gain)) for name, _, gain in drawn] == told
    groups = aggregator.json("/runs/gpt/groups")
    rows = shown.page.locator("section[aria-label=Groups] tbody tr")
    assert {row.locator("th").inner_text() for row in rows.all()} == set(GROUPS)
    assert {group["name"] for group in groups["groups"]} == set(GROUPS)


def test_the_curves_are_those_of_the_api(tab: OpenTab, fed: Peer, aggregator: Aggregator) -> None:
    shown = tab("/?run=gpt")
    shown.page.locator(".columns .u-over").nth(1).wait_for(state="attached")
    value = shown.page.locator(".columns .title .value")
    assert value.first.inner_text() == "h.0 3.00 · h.1 0.500"
    facts = shown.text(".verdict .facts")
    health = aggregator.health("gpt")
    assert f"usual {1_000 * health['usual_step_time_s']:.0f} ms" in facts
    assert f"last good step {health['last_good_step']}" in facts


def test_a_run_without_gains_and_groups_has_no_panels_of_them(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    peer: Peer = aggregator.peer(run="bare").attach(LAYERS)
    more(peer, range(STEPS))
    aggregator.shows(peer)

    shown = tab("/?run=bare")
    shown.page.locator(".ranks li").first.wait_for()

    assert shown.page.locator(".columns h2:visible").all_inner_texts() == ["Ranks"]
