"""Alerts of all runs on one page: what fires, what is over, and the count in the header."""

from __future__ import annotations

import pytest

from gradwatch_wire import Bye
from tests.page.browsing import OpenTab, Tab
from tests.page.feeding import feed, more
from tests.support.aggregator import Aggregator

FIRING = "bad"


def feed_all(aggregator: Aggregator) -> None:
    """Feed a run whose alert fires, one whose alert is over, and one that ended with its alert."""
    feed(aggregator, "over", poison_step=30)
    ended = feed(aggregator, "ended", poison_step=59)
    ended.send(Bye(reason="closed"))
    ended.acked()
    feed(aggregator, FIRING, poison_step=59)


def items(shown: Tab) -> dict[str, str]:
    """Run to the text of its alert, as listed."""
    found = shown.page.locator("ul.alerts > li").all()
    return {item.locator("bdi").first.inner_text(): item.inner_text() for item in found}


def test_alerts_of_all_runs_are_on_one_page(tab: OpenTab, aggregator: Aggregator) -> None:
    feed_all(aggregator)
    shown = tab("/?page=alerts").until_live()
    shown.page.locator("ul.alerts > li").nth(2).wait_for()
    shown.page.get_by_text("firing to the end of its run (ended)").wait_for()

    listed = items(shown)
    latest = aggregator.json("/alerts/latest")
    assert list(listed) == [own["run"] for own in latest] == [FIRING, "ended", "over"]
    for own in latest:
        assert own["message"] in listed[own["run"]]
        assert own["severity"] in listed[own["run"]]
    assert "resolved at 33" in listed["over"]
    assert "Acknowledge" in listed[FIRING]
    assert "Acknowledge" not in listed["over"]
    assert shown.text(".row .soft") == "3 alerts · 1 firing"


@pytest.mark.parametrize(
    ("query", "runs"),
    [
        ("status=firing", [FIRING]),
        ("status=over", ["over"]),
        ("status=run+is+over", ["ended"]),
        ("severity=critical&q=NONFINITE+over", ["over"]),
        ("q=since+step+59", [FIRING, "ended"]),
        ("severity=info", []),
        ("status=nonsense", [FIRING, "ended", "over"]),
    ],
)
def test_the_address_says_which_alerts_are_listed(
    tab: OpenTab, aggregator: Aggregator, query: str, runs: list[str]
) -> None:
    feed_all(aggregator)
    shown = tab(f"/?page=alerts&{query}").until_live()
    shown.page.get_by_text("3 alerts · 1 firing").wait_for()

    assert list(items(shown)) == runs
    assert shown.page.get_by_text("No alert matches.").is_visible() == (not runs)


def test_an_alert_that_fires_appears_and_is_counted(tab: OpenTab, aggregator: Aggregator) -> None:
    peer = feed(aggregator, poison_step=None)
    shown = tab("/?page=alerts").until_live()
    shown.page.get_by_text("No alert yet.").wait_for()
    link = shown.page.locator("header a.firing")
    shown.page.evaluate("gradwatchPage.header.countFiring()")
    assert link.is_hidden()

    more(peer, range(60, 61), poison_step=60)

    shown.page.locator("ul.alerts > li").wait_for()
    link.wait_for()
    assert link.inner_text().split() == ["✖", "critical", "·", "1", "firing"]


def test_the_count_leads_to_what_fires(tab: OpenTab, aggregator: Aggregator) -> None:
    feed_all(aggregator)
    shown = tab("/").until_live()

    link = shown.page.locator("header a.firing")
    link.wait_for()
    shown.page.evaluate("gradwatchPage.header.countFiring()")
    assert link.inner_text().split()[-2:] == ["1", "firing"]  # not that of the run that ended
    link.click()

    shown.page.get_by_text("1 of 3 alerts").wait_for()
    assert list(items(shown)) == [FIRING]
    shown.page.get_by_label("State").select_option("over")
    shown.page.get_by_text("resolved at").wait_for()
    assert list(items(shown)) == ["over"]
    shown.page.locator("ul.alerts .message > a").nth(1).click()
    shown.page.locator("dl.facts").first.wait_for()
