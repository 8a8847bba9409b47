"""Every state that the page can be in has a sentence that says what to do."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

import httpx
import pytest

from gradwatch_wire import Bye
from tests.page.browsing import OpenTab
from tests.page.feeding import LAYERS, POISON_STEP, POISONED, STEPS, feed, more
from tests.support.aggregator import Aggregator

MILLION: Final = 1_000_000


def _hold(route: Any) -> None:
    """Leave a request without an answer."""


def _change(shown: Any, path: str, change: Any) -> None:
    """Let the page get an answer that another aggregator, or another moment, would give."""

    from playwright.sync_api import Error

    def fulfil(route: Any) -> None:
        with contextlib.suppress(Error):  # the tab was closed meanwhile
            answer = route.fetch()
            body = answer.json()
            change(body)
            route.fulfill(response=answer, body=json.dumps(body))

    shown.page.route(path, fulfil)


def _reopen(shown: Any, path: str) -> None:
    shown.page.goto(shown.url + path)


def test_what_is_still_asked_for_is_said(tab: OpenTab, aggregator: Aggregator) -> None:
    feed(aggregator)
    shown = tab("/").until_live()
    shown.page.route("**/runs?*", _hold)
    shown.page.route("**/health", _hold)
    for path, sentence in [("/", "Asking for the runs…"), ("/?run=gpt", "Asking how it is…")]:
        _reopen(shown, path)
        shown.page.get_by_text(sentence).wait_for()
        shown.page.locator("body[data-state=catching-up]").wait_for()


def test_the_line_that_attaches_names_this_aggregator(tab: OpenTab) -> None:
    """With the endpoint where `/healthz` tells one, else with the one that `attach` goes to."""
    shown = tab("/")
    shown.page.get_by_text("No run yet.").wait_for()
    assert "tcp://127.0.0.1:" in shown.text(".empty")
    told = {"ingest": ["tcp://10.0.0.5:6000"]}
    _change(shown, "**/healthz", lambda body: body.update(told))
    _reopen(shown, "/")
    shown.page.get_by_text("This aggregator listens for records at").wait_for()
    assert 'run="my-run", endpoint="tcp://10.0.0.5:6000")' in shown.text("pre.snippet")
    _change(shown, "**/healthz", lambda body: body.update(ingest=None))
    _reopen(shown, "/")
    shown.page.get_by_text("unless it was started with another --ingest").wait_for()
    assert 'run="my-run")' in shown.text("pre.snippet")


def test_a_run_without_a_step_says_that_it_waits(tab: OpenTab, aggregator: Aggregator) -> None:
    peer = aggregator.peer(run="gpt").attach(["a", "b"])
    shown = tab("/?run=gpt")
    shown.page.locator(".verdict", has_text="no step yet").wait_for()
    shown.page.get_by_text("No step of this run has come yet").wait_for()
    shown.page.get_by_text("no record in this range").first.wait_for()
    assert "step none yet" in shown.text(".verdict .facts")

    peer.steps(0, 1.0, 1.0)
    shown.page.locator(".verdict .facts", has_text="step 1").wait_for()
    shown.page.locator(".surface[aria-label*='2 steps']").wait_for()


def test_what_gets_no_answer_any_more_is_said_to_be_stale(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    feed(aggregator)
    shown = tab("/?run=gpt").until_live()
    shown.page.locator(".ruler .bad").wait_for()
    shown.page.route("**/runs/gpt/**", _hold)
    shown.evaluate("() => { gradwatchPage.freshness.heard_at -= 60000; }")  # a minute goes by

    shown.page.locator("body[data-state=stale]").wait_for()

    assert "stale since" in shown.text(".freshness")
    assert "was so" in shown.text(".verdict h1")
    assert shown.page.locator("main.stale").count() == 1


def test_a_run_that_was_deleted_is_not_stale_and_may_come_back(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    peer = feed(aggregator)
    peer.send(Bye(reason="closed"))
    peer.acked()
    shown = tab("/?run=gpt")
    shown.allow("404")
    shown.page.locator(".verdict h1", has_text="ended").wait_for()
    deleted = httpx.delete(f"{aggregator.url}/runs/gpt", params={"confirm": "gpt"}, trust_env=False)
    deleted.raise_for_status()
    shown.evaluate("() => gradwatchPage.schedule.mark()")  # comes every 5 s
    shown.page.locator("body[data-state=missing]").wait_for()
    assert "is not there any more" in shown.text(".verdict h1")
    assert shown.text(".freshness") == "not there"
    assert shown.page.locator("main.stale").count() == 0

    feed(aggregator, poison_step=None)
    shown.until_live()
    shown.page.locator(".verdict .facts", has_text=f"step {STEPS - 1}").wait_for()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("missing", ["EventSource", "TextDecoderStream"])
def test_a_browser_without_streams_is_kept_up_to_date_all_the_same(
    tab: OpenTab, aggregator: Aggregator, missing: str
) -> None:
    peer = feed(aggregator, poison_step=None)
    shown = tab("/")
    shown.page.add_init_script(f"delete globalThis.{missing}")
    _reopen(shown, "/?run=gpt")
    shown.until_live()

    more(peer, range(STEPS, STEPS + 2), poison_step=STEPS)

    shown.page.locator(".alerts li[data-alert] .message", has_text=POISONED).wait_for()
    assert shown.page.locator("#notice section").count() == 0


def test_a_million_steps_are_shown_in_buckets_and_said_to_be(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    every = 2000
    feed(aggregator, steps=range(0, MILLION, every), poison_step=100 * every)
    shown = tab("/?run=gpt&from=0")
    shown.page.get_by_text("2,048 steps in a point: the band is from their least").wait_for()
    shown.page.get_by_text("2,048 steps in a column, the worst shown").wait_for()
    assert shown.page.locator(".ruler .bad").count() == 1
    shown.page.keyboard.press("n")
    said = shown.page.locator("#cursor").text_content()
    first = 100 * every // 2048 * 2048
    assert f"{POISONED}, steps {first:,}\u2013{first + 2047:,}, the worst, L2 norm NaN" in said


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/?page=settings", "There is no such page"),
        ("/?run=gtp", "There is no such run or attempt."),
        ("/?run=gpt&attempt=7", "There is no such run or attempt."),
        ("/?run=gpt&alert=0123456789abcdef", "There is no such alert"),
        ("/?run=gpt&from=ten&colour=red", "does not know it: from=ten, colour=red"),
        ("/?run=gpt&from=50&to=20", "This part is missing: "),
        ("/?run=gpt&column=l3", "This part is missing: "),
        ("/?run=gpt&step=999999", "This part is missing: "),
        ("/?run=gpt&layer=transformer.h.2.attn", "the nearest names are"),
    ],
)
def test_an_address_that_is_wrong_is_told_so(
    tab: OpenTab, aggregator: Aggregator, path: str, sentence: str
) -> None:
    feed(aggregator)
    shown = tab("/")
    shown.allow("404", "422")
    _reopen(shown, path)
    shown.page.get_by_text(sentence).first.wait_for()


def test_ranks_say_what_is_wrong_with_them(tab: OpenTab, aggregator: Aggregator) -> None:
    ranks = [aggregator.peer(run="gpt", rank=rank, world=2, host="box") for rank in range(2)]
    for rank in ranks:
        rank.attach(LAYERS)
    more(ranks[0], range(20))
    more(ranks[1], range(8))

    shown = tab("/?run=gpt")
    listed = shown.page.locator(".ranks li")
    listed.nth(1).wait_for()
    first, other = listed.all_inner_texts()
    assert first.split("\n")[0].endswith("rank 1")
    assert "alive · step 7, 12 steps behind · box" in first
    assert "behind" not in other
    assert "box" not in other


def test_one_click_on_a_cell_or_an_alert_opens_the_layer_and_its_ranks(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    feed(aggregator)
    shown = tab("/?run=gpt")
    shown.page.locator(".ruler .bad").wait_for()
    page = shown.page
    page.locator(".alerts li").get_by_role("button", name="Show alert").click()
    page.locator(".drawer h2", has_text=f"{POISONED} · step {POISON_STEP}").wait_for()
    page.locator(".drawer caption", has_text="Each rank at this step").wait_for()
    page.locator(".drawer .u-over").first.wait_for(state="attached")

    box = page.locator(".heat .surface").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.5 / STEPS, box["y"] + 5)
    page.locator(".drawer h2", has_text="transformer.wte.weight · step 0").wait_for()
    page.locator(".drawer caption", has_text="Each rank at this step").wait_for()


def test_charts_and_the_picture_have_one_cursor(tab: OpenTab, aggregator: Aggregator) -> None:
    feed(aggregator)
    shown = tab("/?run=gpt")
    shown.page.locator(".ruler .bad").wait_for()
    shown.page.locator(".u-over").nth(3).wait_for(state="attached")
    shown.page.locator(".heat .surface").focus()
    shown.page.keyboard.press("Home")
    values = shown.page.locator(".charts").first.locator(".title .value")
    assert all(text.endswith(" at 0") for text in values.all_inner_texts()[:3])
    shown.page.keyboard.press("Shift+ArrowRight")
    assert values.first.inner_text().endswith(" at 10")

    over = shown.page.locator(".u-over").first
    over.hover()
    shown.page.locator(".heat .linked").wait_for()
    step = int(values.first.inner_text().rpartition(" at ")[2])
    assert values.nth(1).inner_text().endswith(f" at {step}")
    left = shown.page.locator(".heat .linked").evaluate("(line) => parseFloat(line.style.left)")
    width = shown.page.locator(".heat canvas").evaluate("(canvas) => canvas.clientWidth")
    assert int(left * STEPS / width) == step


def test_a_range_is_dragged_in_a_curve_and_is_in_the_address(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    feed(aggregator)
    shown = tab("/?run=gpt")
    over = shown.page.locator(".u-over").first
    over.wait_for(state="attached")
    box = over.bounding_box()
    mouse = shown.page.mouse
    mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 20)
    mouse.down()
    mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20, steps=4)
    mouse.up()
    shown.page.wait_for_url("**from=14&to=30**")
    shown.page.locator(".surface[aria-label*='17 steps']").wait_for()
