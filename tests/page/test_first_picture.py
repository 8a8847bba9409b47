"""First picture of a run: the view it begins with."""

from __future__ import annotations

from tests.page.browsing import OpenTab
from tests.page.feeding import LAYERS
from tests.support.aggregator import Aggregator
from tests.support.waiting import wait_until


def test_what_vanishes_from_the_start_is_shown_by_its_size(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    """It has no usual norm from which it could have changed; a choice of the user goes first."""
    from playwright.sync_api import expect

    peer = aggregator.peer(run="deep").attach(LAYERS)
    for step in range(24):
        peer.stats(step, [10.0 ** (at - 12) for at in range(len(LAYERS))], loss=7.0)
    peer.acked()

    def told() -> bool:
        alerts = aggregator.json("/runs/deep/alerts")
        return any(alert["rule"] == "vanishing" and alert["severity"] != "info" for alert in alerts)

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
