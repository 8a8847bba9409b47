"""A run's page: what it says is what the aggregator answers, and the bad cell is the one seen."""

from __future__ import annotations

from typing import Any

import pytest

from gradwatch_wire import Bye, Column
from tests.page.browsing import OpenTab
from tests.page.feeding import LAYERS, NAN, POISON_STEP, POISONED, STEPS, feed, more, norm_of
from tests.support.aggregator import Aggregator
from tests.support.records import stats_of

READOUT = ".readout"
SURFACE = ".heat .surface"
READ_AT = "h.77.w7 · step 4 · "

PIXELS = """([rows, columns]) => {
  const canvas = document.querySelector(".heat canvas");
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const at = (part, parts, size) => Math.floor(((part + 0.5) * size) / parts);
  return Array.from({ length: rows }, (_, row) => Array.from({ length: columns }, (_, column) => {
    const place = 4 * (at(row, rows, height) * width + at(column, columns, width));
    return [...data.slice(place, place + 4)];
  }));
}"""
"""The colour in the middle of each cell, by layer and step."""


@pytest.fixture
def fed(aggregator: Aggregator) -> Any:
    return feed(aggregator)


def _open(tab: Any, more_: str = "", **settings: Any) -> Any:
    shown = tab(f"/?run=gpt{more_}", **settings).until_live()
    shown.page.locator(".heat canvas[width]").wait_for()
    shown.page.locator(".ruler .bad").first.wait_for()
    return shown


@pytest.mark.parametrize(
    ("scheme", "ink"), [("light", [29, 28, 26, 255]), ("dark", [233, 230, 225, 255])]
)
def test_the_poisoned_cell_is_the_one_in_ink(tab: OpenTab, fed: Any, scheme: str, ink: Any) -> None:
    shown = _open(tab, color_scheme=scheme)

    pixels = shown.evaluate(PIXELS, [len(LAYERS), STEPS])

    inky = [
        (name, step)
        for name, line in zip(LAYERS, pixels, strict=True)
        for step, pixel in enumerate(line)
        if pixel == ink
    ]
    assert inky == [(POISONED, POISON_STEP)]
    assert shown.page.locator(".ruler .bad").count() == 1
    assert shown.page.locator(".gutter span").count() == 1


def test_a_key_goes_to_the_bad_cell_and_opens_its_layer(
    tab: OpenTab, fed: Any, aggregator: Aggregator
) -> None:
    """`n`, Enter: the layer's panel has the numbers of `/frames`, to the digit in its title."""
    shown = _open(tab)
    shown.page.keyboard.press("n")

    said = shown.page.locator("#cursor").text_content()
    assert said.startswith(f"{POISONED}, step {POISON_STEP}, L2 norm NaN, usual 0.597")
    assert said.replace(", ", " · ") == shown.text(READOUT)

    shown.page.keyboard.press("Enter")
    facts = shown.page.locator(".drawer dl.facts")
    facts.wait_for()
    frame = aggregator.json(f"/runs/gpt/frames/{POISON_STEP}", params={"layer": POISONED})
    assert frame["layers"][0]["l2"] == "NaN"
    assert facts.locator("dd").all_inner_texts()[:1] == ["NaN"]
    assert f"layer={POISONED}" in shown.page.url
    assert f"step={POISON_STEP}" in shown.page.url


def test_values_are_those_of_the_api(tab: OpenTab, fed: Any, aggregator: Aggregator) -> None:
    step, layer = 20, LAYERS[3]
    shown = _open(tab, f"&layer={layer}&step={step}")
    facts = shown.page.locator(".drawer dl.facts dd")
    facts.first.wait_for()
    own = aggregator.json(f"/runs/gpt/frames/{step}", params={"layer": layer})["layers"][0]

    assert float(facts.first.get_attribute("title")) == own["l2"]
    assert float(facts.nth(1).get_attribute("title")) == own["linf"]
    health = aggregator.health("gpt")
    shown_facts = shown.text(".verdict .facts")
    assert f"step {health['step']}" in shown_facts
    assert f"norm {health['gradient_norm']['last']:.2f}" in shown_facts
    assert f"loss {health['loss']:.2f}" in shown_facts
    assert f"first NaN or Inf at step {POISON_STEP}, rank 0 in {POISONED}" in shown_facts


def test_what_is_read_out_is_of_the_step_that_was_chosen(tab: OpenTab, fed: Any) -> None:
    shown = _open(tab, f"&layer={POISONED}&step={POISON_STEP}")
    value = shown.page.locator(".drawer .chart .value").first
    shown.page.locator(".drawer dl.facts").wait_for()

    assert value.inner_text() == f"NaN at {POISON_STEP}"
    assert shown.page.locator(".charts .value").first.inner_text().count("at") == 0


def test_the_rank_that_was_first_is_named_among_the_ranks(tab: OpenTab, fed: Any) -> None:
    shown = _open(tab)
    rank = shown.page.locator(".ranks li").first
    rank.wait_for()

    assert f"first NaN or Inf, step {POISON_STEP}" in rank.inner_text()


def test_a_rank_of_a_parallel_job_has_its_place(tab: OpenTab, aggregator: Aggregator) -> None:
    """Beside its state, and among the facts of an alert about it."""
    meshes = {"pipeline": Column.pack("<u4", [4, 0]), "tensor": Column.pack("<u4", [0, 1])}
    feed(aggregator, "split", range(4), 2, meshes=meshes)
    (alert,) = aggregator.json("/runs/split/alerts")
    shown = tab("/?run=split").until_live()
    rank = shown.page.locator(".ranks li").first
    rank.wait_for()
    assert "pipeline stage 1, tensor 0" in rank.inner_text()

    shown = tab(f"/?run=split&alert={alert['id']}").until_live()
    facts = shown.page.locator("dl.facts").first
    facts.wait_for()
    assert "pipeline stage 1, tensor 0" in facts.inner_text()


def test_rows_around_a_narrow_fault_are_made_larger(tab: OpenTab, aggregator: Aggregator) -> None:
    """Of 1,000 layers one is bad: `n` finds it, `z` gives its row a name, arrows go on from it."""
    names = [f"h.{number // 10}.w{number % 10}" for number in range(1000)]
    peer = aggregator.peer(run="deep").attach(names)
    for step in range(6):
        norms = [1.0 + 0.01 * ((number * 7 + step) % 5) for number in range(1000)]
        norms[777] = NAN if step == 4 else norms[777]
        peer.stats(step, norms)
    peer.acked()
    aggregator.shows(peer)
    shown = tab("/?run=deep").until_live()
    shown.page.locator(".heat canvas[width]").wait_for()
    labels = shown.page.locator(".heat .labels button")
    everything = shown.page.get_by_text("All rows")
    named = labels.get_by_text("77.w7", exact=True)

    shown.page.keyboard.press("n")
    assert named.count() == 0
    assert not everything.is_visible()
    for _ in range(6):
        shown.page.keyboard.press("z")
    named.wait_for()
    assert shown.page.locator(".heat .gutter .bad").count() == 1
    assert READ_AT in shown.page.locator(READOUT).inner_text()
    for _ in range(12):
        shown.page.keyboard.press("ArrowDown")
    assert "h.78.w9" in shown.page.locator(READOUT).inner_text()
    everything.click()
    named.wait_for(state="detached")


def test_steps_on_the_ruler_are_round(tab: OpenTab, fed: Any) -> None:
    shown = _open(tab)
    labels = shown.page.locator(".ruler span:not(.bad):not(.alert)").all_inner_texts()

    assert labels == ["0", "10", "20", "30", "40", "50"]


def test_every_value_of_the_curve_is_there(tab: OpenTab, fed: Any, aggregator: Aggregator) -> None:
    """As a table, the curve of the norm has what `/series` has, and NaN where it is."""
    shown = _open(tab)
    shown.page.get_by_role("button", name="As table").focus()
    shown.page.keyboard.press("t")
    rows = shown.page.locator(".chart").first.locator("tbody tr")
    rows.first.wait_for()
    series = aggregator.json("/runs/gpt/series", params={"column": "norm", "last": 512})

    found = {
        int(row.locator("th").inner_text()): row.locator("td").inner_text() for row in rows.all()
    }

    assert found[POISON_STEP] == "NaN"
    last = dict(zip(series["step"], series["series"][0]["last"], strict=True))
    for step in range(STEPS - 10, STEPS):
        assert abs(float(found[step]) - last[step]) <= 0.005


def test_an_alert_appears_without_reload(tab: OpenTab, aggregator: Aggregator) -> None:
    peer = feed(aggregator, poison_step=None)
    shown = tab("/?run=gpt").until_live()
    assert shown.page.locator(".alerts li").count() == 0
    shown.evaluate("() => { window.kept = true; }")

    more(peer, range(STEPS, STEPS + 2), poison_step=STEPS)

    shown.page.locator(".alerts li[data-alert]").wait_for()
    assert POISONED in shown.text(".alerts li .message")
    shown.page.locator(".verdict h1", has_text="critical").wait_for()
    assert shown.evaluate("() => window.kept")
    assert POISONED in shown.page.locator("#urgent").text_content()
    (alert,) = aggregator.json("/runs/gpt/alerts")
    assert shown.page.locator("[data-alert]").get_attribute("data-alert") == alert["id"]


def test_an_alert_comes_by_the_stream_also_to_a_page_that_is_paused(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    peer = feed(aggregator, poison_step=None)
    shown = tab("/?run=gpt").until_live()
    shown.page.get_by_text("None so far.").wait_for()
    shown.page.keyboard.press("p")
    shown.page.locator("body[data-state=paused]").wait_for()

    more(peer, range(STEPS, STEPS + 2), poison_step=STEPS)

    shown.page.locator(".alerts li[data-alert]", has_text=POISONED).wait_for()
    assert f"step {STEPS - 1}" in shown.text(".verdict .facts")


def test_new_steps_come_by_themselves(tab: OpenTab, aggregator: Aggregator) -> None:
    peer = feed(aggregator, poison_step=None)
    shown = tab("/?run=gpt").until_live()
    shown.page.locator(".verdict .facts", has_text=f"step {STEPS - 1}").wait_for()

    more(peer, range(STEPS, STEPS + 30))

    shown.page.locator(".verdict .facts", has_text=f"step {STEPS + 29}").wait_for()
    # Steps that are all past are asked for once a minute: these are not.
    shown.page.locator(".surface[aria-label*='90 steps']").wait_for(timeout=30_000)


def test_an_alert_is_acknowledged_and_silenced_from_its_page(
    tab: OpenTab, fed: Any, aggregator: Aggregator
) -> None:
    more(fed, range(STEPS, STEPS + 1), poison_step=STEPS)
    aggregator.shows(fed)
    alert = next(
        alert for alert in aggregator.json("/runs/gpt/alerts") if alert["first_step"] == STEPS
    )
    shown = tab(f"/?run=gpt&alert={alert['id']}")
    page = shown.page
    page.locator("dl.facts dt", has_text="fired").wait_for()
    page.get_by_text("The rule nonfinite: ").click()
    page.get_by_text("a layer's gradient has a NaN or an Inf on any rank").wait_for()
    page.get_by_role("button", name="Acknowledge").click()
    page.get_by_label("Your name").fill("ada")
    page.get_by_role("dialog").get_by_role("button", name="Acknowledge").click()
    page.locator("h1", has_text="acknowledged by ada").wait_for()

    page.get_by_role("button", name="Silence…").click()
    page.get_by_role("dialog").get_by_role("button", name="Silence").click()
    page.locator("h1", has_text="silenced").wait_for()

    (silence,) = aggregator.json("/silences")
    assert (silence["run"], silence["rule"], silence["by"]) == ("gpt", "nonfinite", "ada")
    page.get_by_label("Menu").click()
    page.get_by_role("link", name="Silences").click()
    page.get_by_role("button", name="End it").click()
    page.get_by_text("None in force").wait_for()
    assert aggregator.json("/silences") == []


def test_the_address_says_what_is_shown(tab: OpenTab, fed: Any) -> None:
    """Zooming is in the address; a reload shows the same, and Back undoes it."""
    shown = _open(tab)
    box = shown.page.locator(SURFACE).bounding_box()
    mouse = shown.page.mouse
    middle = box["y"] + box["height"] / 2
    mouse.move(box["x"] + box["width"] * 0.5, middle)
    mouse.down()
    mouse.move(box["x"] + box["width"] * 0.75, middle, steps=4)
    mouse.up()
    shown.page.wait_for_url("**from=30&to=45**")
    shown.page.locator(".surface[aria-label*='16 steps']").wait_for()
    shown.page.reload()
    shown.page.locator(".surface[aria-label*='16 steps']").wait_for()
    shown.page.get_by_label("Steps shown").wait_for()
    shown.page.go_back()
    shown.page.locator(f".surface[aria-label*='{STEPS} steps']").wait_for()


def test_one_part_that_fails_leaves_the_others(tab: OpenTab, fed: Any) -> None:
    shown = tab("/?run=gpt&layer=transformer.h.2.attn&step=3")
    shown.allow("404")
    # The first of two: its curves fail, and its numbers.
    failed = shown.page.locator(".drawer .failed:visible").first
    failed.wait_for()
    assert POISONED in failed.inner_text()  # the nearest names
    assert "step" in shown.text(".verdict .facts")
    assert shown.page.locator(".alerts li").count() == 1
    shown.page.locator(".ruler .bad").wait_for()


def test_steps_that_are_not_there_are_said_to_be_none(tab: OpenTab, fed: Any) -> None:
    shown = tab("/?run=gpt&from=500&to=600")
    shown.page.get_by_text("No step in this range").wait_for()
    shown.page.get_by_text("no record in this range").first.wait_for()


def test_a_run_that_is_not_there_is_said_so(tab: OpenTab, fed: Any) -> None:
    shown = tab("/?run=gtp")
    shown.allow("404")
    shown.page.get_by_text("There is no such run or attempt.").wait_for()
    assert "no run 'gtp'; known runs: gpt" in shown.text(".verdict")


def test_a_run_is_deleted_by_its_name_and_who_watches_it_is_told(
    tab: OpenTab, fed: Any, aggregator: Aggregator
) -> None:
    fed.send(Bye(reason="closed"))
    fed.acked()
    watching, deleting = tab("/?run=gpt"), tab("/?run=gpt")
    watching.allow("404")
    watching.page.locator(".verdict h1", has_text="ended").wait_for()
    page = deleting.page
    page.get_by_role("button", name="Delete this run…").click()
    page.get_by_label("Its name once more").fill("gtp")
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("alert").get_by_text("the name of the run").wait_for()
    deleting.allow("422")
    deleting.allow("404")  # what it had asked for when the run went
    page.get_by_label("Its name once more").fill("gpt")
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("heading", name="Runs").wait_for()
    assert aggregator.json("/runs") == []
    watching.evaluate("() => gradwatchPage.schedule.mark()")  # what comes once a minute
    watching.page.get_by_text("is not there any more").wait_for()


def test_without_what_draws_lines_the_page_says_so_and_shows_tables(tab: OpenTab, fed: Any) -> None:
    shown = tab("/")
    name = 'name="gradwatch-lines" content="'

    def without_lines(route: Any) -> None:
        answer = route.fetch()
        before, _, after = answer.text().partition(name)
        assert after.startswith("/static/"), "uPlot is not here: scripts/vendor gets it"
        route.fulfill(response=answer, body=before + name + after[after.index('"') :])

    shown.page.route("**/?run=gpt", without_lines)
    shown.page.goto(f"{shown.url}/?run=gpt")
    shown.page.get_by_text("Lines are missing").first.wait_for()
    rows = shown.page.locator(".chart").first.locator("tbody tr")
    rows.first.wait_for()
    assert rows.count() == 50
    shown.page.locator(".ruler .bad").wait_for()


def test_a_narrow_fault_is_marked_named_and_read_out_at_the_cursor(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    """One weight of 200 layers grows; its bias, which is as far off, is innocent."""
    names = [f"h.{block}.{part}" for block in range(100) for part in ("weight", "bias")]
    peer = aggregator.peer(run="wide").attach(names)
    for step in range(60):
        norms = [norm_of(at % 2, step + at) for at in range(len(names))]
        if step >= 50:
            norms[140:142] = [60.0 * norm for norm in norms[140:142]]
        peer.send(stats_of(step, norms, loss=2.0))
    peer.acked()
    aggregator.shows(peer)
    shown = tab("/?run=wide", viewport={"width": 1280, "height": 800}).until_live()
    mark = shown.page.locator(".gutter .alert")
    mark.wait_for()
    surface = shown.page.locator(".heat .surface")
    box = surface.bounding_box()
    middle = mark.bounding_box()["y"] + mark.bounding_box()["height"] / 2
    assert (middle - box["y"]) / box["height"] == pytest.approx(140.5 / 200, abs=0.02)

    shown.page.keyboard.press("n")
    said = shown.page.locator("#cursor").text_content()
    assert said.startswith("h.70.weight, step 50")
    read = shown.page.locator(READOUT).bounding_box()
    cross = shown.page.locator(".heat .cross").bounding_box()
    assert abs(read["y"] + read["height"] - cross["y"]) < 20  # just above the cell
    assert read["x"] + read["width"] <= box["x"] + box["width"] + 1
    assert read["y"] + read["height"] < 800
    shown.page.locator("h1, h2").first.click()
    assert not shown.page.locator(READOUT).is_visible()
