"""What a run's page asks for until its first picture is there: each thing once, and early."""

from __future__ import annotations

import pytest

from tests.page.browsing import OpenTab
from tests.page.feeding import feed
from tests.support.aggregator import Aggregator
from tests.support.peer import NewPeer

TIMELINE = """() => performance.getEntriesByType("resource").map(
  ({ name, startTime, responseEnd }) => [new URL(name).pathname, startTime, responseEnd])"""


@pytest.mark.exhaustive
def test_the_data_are_asked_for_once_and_before_the_modules_are_there(
    tab: OpenTab, aggregator: Aggregator, peers: NewPeer
) -> None:
    feed(aggregator, peers)
    shown = tab("/?run=gpt")
    shown.page.locator(".legend > *").first.wait_for()
    shown.page.wait_for_function(f"({TIMELINE})().some(([path]) => path === '/runs/gpt/ranks')")
    found = shown.evaluate(TIMELINE)

    modules_ms = max(end_ms for path, _, end_ms in found if path.endswith(".js"))
    pictures_ms = 0.0
    for part in ("health", "heatmap", "series"):
        (end_ms,) = (
            end_ms
            for path, asked_ms, end_ms in found
            if path == f"/runs/gpt/{part}" and asked_ms < modules_ms
        )
        pictures_ms = max(pictures_ms, end_ms)
    later = [at for path, at, _ in found if path in ("/runs/gpt/ranks", "/runs/gpt")]
    assert all(at > pictures_ms for at in later)


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
