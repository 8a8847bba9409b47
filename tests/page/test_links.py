"""Links of a run to pages elsewhere: shown on its page, harmless whatever was sent."""

from __future__ import annotations

from typing import Any

from gradwatch_wire import Event
from tests.page.feeding import feed
from tests.support.aggregator import Aggregator

MARKUP = "<img src=x onerror=alert(1)>"
URLS = {
    "W&B": "https://wandb.example/team/p/runs/1?a=b&c#d",
    MARKUP: "http://mlflow.example/#/experiments/0/runs/1",
    "attributes": "https://h.example/\"onmouseover=alert(1)'<script>",
}


def test_links_are_shown_and_lead_elsewhere_without_telling_from_where(
    tab: Any, aggregator: Aggregator, peers: Any
) -> None:
    """Names are text; a link that a page may not show is not there."""
    peer = feed(aggregator, peers, steps=range(3), poison_step=None)
    for name, url in (*URLS.items(), ("script", "javascript:alert(1)")):
        peer.send(Event(name="link", step=0, data={"name": name, "url": url}))
    peer.acked()
    aggregator.shows(peer)
    shown = tab("/?run=gpt")
    shown.until_live()
    links = shown.page.locator(".verdict .links a")
    links.first.wait_for()

    assert {a.inner_text(): a.get_attribute("href") for a in links.all()} == URLS
    for link in links.all():
        assert link.get_attribute("target") == "_blank"
        assert link.get_attribute("rel") == "noopener noreferrer"
    assert shown.page.locator(".verdict img, .verdict script").count() == 0
