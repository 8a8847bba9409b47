"""The list of runs: what the API says, whatever the names are."""

from __future__ import annotations

import pytest

from gradwatch_wire import Bye
from tests.page.browsing import OpenTab
from tests.page.feeding import feed
from tests.support.aggregator import Aggregator

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "javascript:alert(1)",
    "{{7*7}}",
    "a'b\"c",
    "__proto__",
    "a?b=c&d#e",
    "\u202egnp.exe\n\x00",
    "x" * 400,
)


def test_the_list_is_that_of_the_api(tab: OpenTab, aggregator: Aggregator) -> None:
    feed(aggregator, "bad", poison_step=59)
    feed(aggregator, "good", poison_step=None)
    shown = tab("/").until_live()
    rows = shown.page.locator("table.runs tbody tr")
    rows.nth(1).wait_for()

    texts = [row.locator("td").all_inner_texts() for row in rows.all()]
    api = {row["run"]: row for row in aggregator.json("/runs")}

    names = [text[1].split("\n")[0] for text in texts]
    assert names == ["bad", "good"]  # the worst first
    for name, text in zip(names, texts, strict=True):
        own = api[name]
        assert text[1] == (f"{name}\n{own['reason']}" if own["reason"] else name)
        assert text[3] == f"{own['loss']:.3g}"
        assert own["status"] in text[0]
        assert own["phase"] in text[0]
        assert text[2] == str(own["step"])
    (norm,) = [row["norm"] for row in aggregator.json("/runs?spark=8") if row["run"] == "good"]
    assert texts[1][5] == f"{norm:.3g}"  # the last one, as on the page of the run


def test_what_is_bad_comes_first_also_where_it_ended(tab: OpenTab, aggregator: Aggregator) -> None:
    order = ["bad-running", "bad-ended", "good"]
    for name in order[::-1]:
        peer = feed(aggregator, name, poison_step=None if name == "good" else 59)
        if name != order[0]:
            peer.send(Bye(reason="closed"))
            peer.acked()
    shown = tab("/").until_live()
    shown.page.locator("table.runs tbody tr").nth(2).wait_for()
    shown.page.locator("table.runs td", has_text="· ended").nth(1).wait_for()

    links = shown.page.locator("table.runs a.whole").all_inner_texts()
    assert links == order
    assert [row["run"] for row in aggregator.json("/runs?sort=worst")] == order


def test_a_run_that_begins_appears(tab: OpenTab, aggregator: Aggregator) -> None:
    shown = tab("/")
    shown.page.get_by_text("No run yet.").wait_for()
    assert "gradwatch.attach(model, optimizer" in shown.text("pre.snippet")

    feed(aggregator, "first", steps=range(3), poison_step=None)

    shown.page.get_by_role("link", name="first").click()
    shown.page.locator(".verdict .facts", has_text="step 2").wait_for()


def test_runs_are_filtered_and_the_filter_is_in_the_address(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    for name in ("gpt-a", "gpt-b", "mlp"):
        feed(aggregator, name, steps=range(2), poison_step=None)
    shown = tab("/").until_live()
    rows = shown.page.locator("table.runs tbody tr")
    rows.nth(2).wait_for()
    shown.page.keyboard.press("/")
    shown.page.keyboard.type("gpt")
    rows.nth(2).wait_for(state="detached")
    assert rows.count() == 2
    shown.page.wait_for_url("**/?q=gpt")  # 150 ms after the last letter
    shown.page.keyboard.type("-nothing")
    shown.page.get_by_text("No run matches").wait_for()
    shown.page.get_by_role("button", name="Show all").click()
    rows.nth(2).wait_for()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("run", ["constructor", "a.b_c-1"])
def test_a_layer_may_be_called_anything(tab: OpenTab, aggregator: Aggregator, run: str) -> None:
    layers = [f"h.{at}.{name}" for at, name in enumerate(HOSTILE)]
    feed(aggregator, run, steps=range(4), poison_step=None, names=layers)
    shown = tab("/")
    shown.page.on("dialog", lambda dialog: shown.faults.append("a dialog opened"))
    shown.until_live()
    shown.page.locator("table.runs tbody a.whole").click()
    shown.page.locator(".verdict .facts", has_text="step 3").wait_for()
    labels = shown.page.locator(".heat .labels button")
    labels.nth(len(HOSTILE) - 1).wait_for()
    titles = [each.get_attribute("title") for each in labels.all()]

    for at, name in enumerate(HOSTILE):
        visible = name.replace("\u202e", "\\u202e").replace("\n", "\\u000a")
        assert f"h.{at}.{visible}".replace("\x00", "\\u0000") in titles
        labels.nth(at).click()
        shown.page.locator(".drawer h2", has_text=f"h.{at}.").wait_for()
        shown.page.locator(".drawer .u-over").first.wait_for(state="attached")
    assert shown.page.locator("main img, main script").count() == 0
    assert run in shown.text("header .where")
