"""First picture of a run: its requests, each once and early, and the view it begins with."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

from tests.page.browsing import OpenTab
from tests.page.feeding import LAYERS, feed
from tests.support.aggregator import Aggregator
from tests.support.waiting import wait_until

ASKED = (
    """() => performance.getEntriesByType("resource").map(({ name }) => new URL(name).pathname)"""
)
PARTS = ["/runs/gpt/health", "/runs/gpt/heatmap", "/runs/gpt/series"]


def test_the_data_are_asked_for_once_and_before_the_modules_are_there(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    feed(aggregator)
    shown = tab("/")
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    shown.page.route("**/main.js", hold)
    shown.page.goto(f"{aggregator.url}/?run=gpt", wait_until="commit")
    wait_until(lambda: set(PARTS) <= set(shown.evaluate(ASKED)))
    early = shown.evaluate(ASKED)
    for route in held:
        route.continue_()
    shown.page.locator(".legend > *").first.wait_for()
    wait_until(lambda: "/runs/gpt/ranks" in shown.evaluate(ASKED))
    asked = shown.evaluate(ASKED)

    assert held
    assert not {"/runs/gpt/ranks", "/runs/gpt"} & set(early)
    assert [asked.count(part) for part in PARTS] == [1, 1, 1]


def test_what_vanishes_from_the_start_is_shown_by_its_size(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    """It has no usual norm from which it could have changed; a choice of the user goes first."""
    peer = aggregator.peer(run="deep").attach(LAYERS)
    for step in range(24):
        peer.stats(step, [10.0 ** (at - 12) for at in range(len(LAYERS))], loss=7.0)
    peer.acked()

    def told() -> bool:
        alerts = aggregator.json("/runs/deep/alerts")
        return any(own["rule"] == "vanishing" and own["severity"] != "info" for own in alerts)

    wait_until(told, "the warning")
    loud = aggregator.peer(run="loud").attach(LAYERS)
    for step in range(4):
        loud.stats(step, [500.0] * len(LAYERS), loss=7.0)
    loud.acked()
    wait_until(lambda: aggregator.json("/runs/loud/alerts"), "what is told as info")
    shown = tab("/?run=loud").until_live()
    expect(shown.page.locator(".segmented [aria-pressed=true]")).to_have_text("change")
    shown = tab("/?run=deep").until_live()
    pressed = shown.page.locator(".segmented [aria-pressed=true]")

    expect(pressed).to_have_text("size")
    pressed.press("v")
    expect(pressed).to_have_text("change")
    shown.page.wait_for_url("**view=change**")
    pressed.press("v")
    shown.page.wait_for_url(lambda url: "view=" not in url)
    expect(pressed).to_have_text("size")


AHEAD = "m.askAhead('/rules');"
ASK = "return m.getJson('/rules');"


def test_an_answer_is_given_to_the_next_who_asks_unless_it_is_dropped(tab: OpenTab) -> None:
    shown = tab("/")
    asked: list[str] = []
    shown.page.on("request", lambda request: asked.append(request.url))

    def times(script: str) -> int:
        asked.clear()
        assert shown.module("data/api", script)
        return sum(url.endswith("/rules") for url in asked)

    assert times(AHEAD + ASK) == 1
    assert times(ASK) == 1
    assert times(AHEAD + "m.dropAhead();" + ASK) == 2
