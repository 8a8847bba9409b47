"""A tab that is open for days: what it keeps is bounded, and nobody loses what they are at."""

from __future__ import annotations

import time
from typing import Any, Final

import pytest

from tests.page.browsing import OpenTab
from tests.page.feeding import LAYERS, POISON_STEP, POISONED, STEPS, feed, more
from tests.support.aggregator import Aggregator

MARKS: Final = 10_000
KEPT_STEPS: Final = 128
ALLOWED: Final = {"Nodes": 60, "JSEventListeners": 60, "JSHeapUsedSize": 5_000_000}
"""Growth that may come and go: rows of tables, letters of the ruler, garbage of the heap."""
ANSWERED_S: Final = 10

REFRESH = """async (times) => {
  for (let at = 0; at < times; at += 1) await gradwatchPage.refresh();
}"""
MARK = """(times) => {
  for (let at = 0; at < times; at += 1) gradwatchPage.schedule.mark();
}"""
VISIT = """async (addresses) => {
  for (const address of addresses) {
    gradwatchPage.go(address);
    await gradwatchPage.refresh();
  }
}"""


class Metrics:
    """Memory of a tab, once the garbage is collected."""

    def __init__(self, shown: Any) -> None:
        self._session = shown.page.context.new_cdp_session(shown.page)
        self._session.send("Performance.enable")

    def take(self) -> dict[str, float]:
        """Return the numbers by Chromium's names."""
        for _ in range(3):  # what one round frees may hold what the next one does
            self._session.send("HeapProfiler.collectGarbage")
        found = self._session.send("Performance.getMetrics")["metrics"]
        return {each["name"]: each["value"] for each in found}

    def check_bounded(self, before: dict[str, float]) -> None:
        """Fail where the tab holds more than `before`.

        A view that was just left stays until its last request is answered: wait for that.
        """
        deadline = time.monotonic() + ANSWERED_S
        while (more := self._more_than(before)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not more, more

    def _more_than(self, before: dict[str, float]) -> dict[str, tuple[float, float]]:
        after = self.take()
        both = {name: (before[name], after[name]) for name in ALLOWED}
        return {name: (old, new) for name, (old, new) in both.items() if new > old + ALLOWED[name]}


@pytest.mark.slow
def test_a_long_live_run_keeps_no_more_than_its_window(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    """10,000 marks, and five windows of new steps: no nodes, listeners or points are left over."""
    peer = feed(aggregator, poison_step=None, steps=range(KEPT_STEPS))
    shown = tab(f"/?run=gpt&last={KEPT_STEPS}").until_live()
    shown.page.locator(f".surface[aria-label*='{KEPT_STEPS} steps']").wait_for()
    surface = shown.page.locator(".heat .surface")
    seen: set[str] = set()
    step = KEPT_STEPS

    def live(rounds: int) -> None:
        nonlocal step
        for _ in range(rounds):
            more(peer, range(step, step + 16))
            step += 16
            shown.evaluate(REFRESH, 1)
            seen.add(surface.get_attribute("aria-label").split(";")[0])

    metrics = Metrics(shown)
    live(8)
    before = metrics.take()
    live(32)
    shown.evaluate(MARK, MARKS)

    metrics.check_bounded(before)
    shown.page.locator(".verdict .facts", has_text=f"step {step - 1}").wait_for()
    assert seen == {f"{len(LAYERS)} layers, {KEPT_STEPS} steps"}


def test_views_that_were_left_keep_nothing(tab: OpenTab, aggregator: Aggregator) -> None:
    feed(aggregator)
    (alert,) = aggregator.json("/runs/gpt/alerts")
    addresses = [
        f"/?run=gpt&layer={POISONED}&step={POISON_STEP}",
        "/",
        f"/?run=gpt&alert={alert['id']}",
        "/?page=rules",
    ]
    shown = tab("/").until_live()
    metrics = Metrics(shown)
    shown.evaluate(VISIT, addresses * 2)
    before = metrics.take()
    shown.evaluate(VISIT, addresses * 8)

    metrics.check_bounded(before)


def test_an_alert_that_goes_on_draws_its_page_anew_and_keeps_nothing(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    feed(aggregator)
    (alert,) = aggregator.json("/runs/gpt/alerts")
    shown = tab(f"/?run=gpt&alert={alert['id']}")
    shown.page.locator(".u-over").first.wait_for(state="attached")
    news = """([id, times]) => {
      for (let at = 0; at < times; at += 1)
        gradwatchPage.take("alert", { id, last_step: 40 + at });
    }"""
    metrics = Metrics(shown)
    shown.evaluate(news, [alert["id"], 5])
    before = metrics.take()
    shown.evaluate(news, [alert["id"], 60])

    metrics.check_bounded(before)
    assert shown.page.locator(".u-over").count() == 3


def test_the_keyboard_stays_where_it_is_while_steps_come(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    peer = feed(aggregator)
    shown = tab("/").until_live()
    step = STEPS

    def stays(selector: str, fresh: str) -> None:
        nonlocal step
        shown.page.locator(selector).first.focus()
        more(peer, range(step, step + 1))
        shown.page.locator(fresh, has_text=f"{step}").first.wait_for()
        step += 1
        assert shown.evaluate("(it) => document.activeElement?.matches(it)", selector), selector

    stays("table.runs a.whole", "table.runs td")
    shown.page.keyboard.press("Enter")
    shown.page.locator(".ruler .bad").wait_for()
    stays(".verdict .facts a", ".verdict .facts")
    shown.page.locator(".alerts li").first.wait_for()
    shown.page.locator(".alerts li button").first.focus()
    (alert,) = aggregator.json("/runs/gpt/alerts")
    shown.evaluate("(alert) => gradwatchPage.take('alert', alert)", alert)
    stays(".alerts li button", ".verdict .facts")
    stays(".heat .labels button", ".verdict .facts")


def test_a_step_that_is_open_is_drawn_once(tab: OpenTab, aggregator: Aggregator) -> None:
    peer = feed(aggregator)
    shown = tab("/?run=gpt&step=5")
    shown.page.locator(".drawer caption", has_text="Each rank").wait_for()
    shown.evaluate("() => { document.querySelector('.drawer table').dataset.kept = 'yes'; }")

    more(peer, range(STEPS, STEPS + 1))
    shown.page.locator(".verdict .facts", has_text=f"step {STEPS}").wait_for()
    shown.evaluate(REFRESH, 2)

    assert shown.page.locator(".drawer table[data-kept]").count() == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("range_", ["from=0", f"from=10&to={STEPS + 200}"])
def test_a_range_that_may_grow_grows_in_every_picture(
    tab: OpenTab, aggregator: Aggregator, range_: str
) -> None:
    peer = feed(aggregator)
    first = int(range_.partition("=")[2].partition("&")[0])
    shown = tab(f"/?run=gpt&{range_}")
    shown.page.locator(f".surface[aria-label*='{STEPS - first} steps']").wait_for()

    more(peer, range(STEPS, STEPS + 7))

    shown.page.locator(f".surface[aria-label*='{STEPS + 7 - first} steps']").wait_for()


def test_steps_that_lie_far_apart_stay_in_the_picture(tab: OpenTab, aggregator: Aggregator) -> None:
    """The newest 128 steps with a record are 1,271 steps, in buckets of 4; all stay."""
    peer = feed(aggregator, steps=range(0, 2000, 10), poison_step=None)
    shown = tab("/?run=gpt&last=128")
    surface = shown.page.locator(".heat .surface[aria-label*=' steps;']")
    surface.wait_for()
    before = surface.get_attribute("aria-label")

    more(peer, range(2000, 2001))
    shown.page.locator(".verdict .facts", has_text="step 2,000").wait_for()
    shown.evaluate(REFRESH, 1)

    assert "318 steps" in before
    assert surface.get_attribute("aria-label") == before


def test_steps_that_are_past_are_asked_for_once(tab: OpenTab, aggregator: Aggregator) -> None:
    feed(aggregator)
    shown = tab("/?run=gpt&from=10&to=40")
    shown.page.locator(".surface[aria-label*='31 steps']").wait_for()
    shown.page.locator(".alerts li").first.wait_for()
    asked: list[str] = []
    shown.page.on("request", lambda request: asked.append(request.url))

    shown.evaluate(REFRESH, 3)

    assert any("/health" in url for url in asked)
    assert not [url for url in asked if "/heatmap" in url or "/series" in url]
