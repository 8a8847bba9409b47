"""What a run's page asks for until its first picture is there: each thing once, and early."""

from __future__ import annotations

from typing import Any

from tests.page.feeding import feed
from tests.support.aggregator import Aggregator

TIMELINE = """() => ({
  marks: Object.fromEntries(
    performance.getEntriesByType("mark").map(({ name, startTime }) => [name, startTime])),
  asked: performance.getEntriesByType("resource").map(
    ({ name, startTime }) => [new URL(name).pathname, startTime]),
})"""


def _timeline(shown: Any) -> Any:
    shown.page.locator(".legend > *").first.wait_for()
    return shown.evaluate(TIMELINE)


def test_the_data_are_asked_for_once_and_before_the_modules_are_there(
    tab: Any, aggregator: Aggregator, peers: Any
) -> None:
    feed(aggregator, peers)
    found = _timeline(tab("/?run=gpt"))

    drawn_ms = found["marks"]["heatmap"]
    assert found["marks"]["verdict"] <= drawn_ms
    for part in ("health", "heatmap", "series"):
        (asked_ms,) = (
            at for path, at in found["asked"] if path == f"/runs/gpt/{part}" and at <= drawn_ms
        )
        assert asked_ms < found["marks"]["verdict"], part
    later = [at for path, at in found["asked"] if path in ("/runs/gpt/ranks", "/runs/gpt")]
    assert all(at > drawn_ms for at in later)


AHEAD = "m.askAhead('/rules');"
ASK = "return m.getJson('/rules');"


def test_an_answer_is_given_to_the_next_who_asks_unless_it_is_dropped(tab: Any) -> None:
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
