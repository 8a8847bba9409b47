"""Access without sight or a mouse to everything, and without the token to nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.page.browsing import OpenTab
from tests.page.feeding import LAYERS, POISON_STEP, POISONED, feed
from tests.support.aggregator import Aggregator

PAGES = ["/", "/?run=gpt", "/?page=alerts", "/?page=rules", "/?page=silences"]


@pytest.fixture
def fed(aggregator: Aggregator) -> Any:
    feed(aggregator, "mlp", poison_step=None)
    return feed(aggregator)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    tab: OpenTab, fed: Any, aggregator: Aggregator, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    (alert,) = aggregator.json("/runs/gpt/alerts")
    further = [
        f"/?run=gpt&alert={alert['id']}",
        f"/?run=gpt&layer={POISONED}&step={POISON_STEP}&fold=1&open=transformer.h.2",
    ]
    for path in [*PAGES, *further]:
        shown = tab(path, color_scheme=scheme).until_live()
        if "run=" in path and "alert=" not in path:
            shown.page.locator(".ruler span").first.wait_for()
        found = Axe().run(shown.page).response["violations"]
        serious = [own for own in found if own["impact"] in ("serious", "critical")]
        told = [(fault["id"], [node["html"][:200] for node in fault["nodes"]]) for fault in serious]
        assert not told, path


def test_the_keyboard_alone_reaches_everything(tab: OpenTab, fed: Any) -> None:
    shown = tab("/").until_live()
    press = shown.page.keyboard.press
    shown.page.locator("a.whole", has_text="gpt").focus()
    press("Enter")
    surface = shown.page.locator(".heat .surface")
    shown.page.locator(".ruler .bad").wait_for()
    said = shown.page.locator("#cursor")
    press("n")
    assert POISONED in said.text_content()
    assert surface.evaluate("(node) => node === document.activeElement")
    press("ArrowUp")
    assert LAYERS[LAYERS.index(POISONED) - 1] in said.text_content()
    press("Shift+ArrowLeft")
    assert f"step {POISON_STEP - 10}" in said.text_content()
    press("End")
    assert "step 59" in said.text_content()
    press("PageDown")
    assert "transformer.h.2" in said.text_content()
    press("v")
    shown.page.wait_for_url("**view=size**")
    press("f")
    shown.page.wait_for_url("**fold=1**")
    press("]")
    shown.page.locator(".drawer h2", has_text=POISONED).wait_for()
    press("Escape")
    shown.page.locator(".drawer").wait_for(state="hidden")
    press("?")
    shown.page.get_by_role("dialog", name="Keys").wait_for()
    press("Escape")
    press("g")
    press("r")
    shown.page.get_by_role("heading", name="Runs").wait_for()


def test_the_picture_has_a_table(tab: OpenTab, fed: Any) -> None:
    shown = tab("/?run=gpt").until_live()
    shown.page.locator(".ruler .bad").wait_for()
    shown.page.get_by_role("button", name="As table").click()
    first = shown.page.locator("section[aria-label='Layers and steps'] tbody tr").first
    cells = [first.locator("th").inner_text(), *first.locator("td").all_inner_texts()[:2]]
    assert cells == [POISONED, str(POISON_STEP), "1"]


@pytest.mark.parametrize("path", PAGES)
def test_a_phone_needs_no_scrolling_aside(tab: OpenTab, fed: Any, path: str) -> None:
    shown = tab(path, viewport={"width": 360, "height": 740}).until_live()
    if "run=" in path:
        shown.page.locator(".ruler span").first.wait_for()
    assert shown.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0


def test_the_theme_can_be_chosen_and_is_kept(tab: OpenTab, fed: Any) -> None:
    shown = tab("/", color_scheme="light").until_live()
    back = "() => getComputedStyle(document.body).backgroundColor"
    light = shown.evaluate(back)
    shown.page.get_by_label("Light or dark").click()
    dark = shown.evaluate(back)
    shown.page.reload()

    assert light != dark
    assert shown.evaluate(back) == dark
