"""Another run beside the one that is shown: its lines, and what differs in words."""

from __future__ import annotations

from gradwatch_wire import Bye, Column, Stats
from tests.page.browsing import OpenTab
from tests.page.feeding import LAYERS, feed, norm_of
from tests.support.aggregator import Aggregator


def feed_other(aggregator: Aggregator, name: str, steps: range, loss: float, lr: float) -> None:
    """Feed a run that ends, with a loss and a learning rate of its own."""
    peer = aggregator.peer(run=name).attach(LAYERS)
    for step in steps:
        norms = Column.pack("<f8", [norm_of(at, step) for at in range(len(LAYERS))])
        scalars = {"loss": loss, "lr": lr}
        peer.send(Stats(manifest_id=1, step=step, scalars=scalars, columns={"l2": norms}))
    peer.send(Bye(reason="closed"))  # else it is silent soon, and not healthy any more
    peer.acked()


def test_another_run_is_beside_it_in_curves_and_words(tab: OpenTab, aggregator: Aggregator) -> None:
    feed(aggregator, "bad")
    feed_other(aggregator, "good", range(50), 0.5, 1e-4)
    shown = tab("/?run=bad&beside=good").until_live()
    words = shown.page.get_by_text("Beside good (")
    words.wait_for()

    assert words.inner_text() == (
        "Beside good (healthy). At step 49: loss 2.02, there 0.500; learning rate 0.00100, there "
        "1e-4; first NaN or Inf at step 37, there at no step."
    )
    shown.page.locator(".charts .u-over").nth(3).wait_for(state="attached")
    values = shown.page.locator(".charts .title .value").all_inner_texts()
    assert values[1] == "this run 2.02 · good 0.500"  # each one's newest
    assert values[2] == "this run 0.00100 · good 1e-4"
    assert values[3] == "0.200"  # the other one gave none
    shown.page.get_by_label("Compare with a run").wait_for()
    assert shown.page.get_by_label("Compare with a run").input_value() == "good"


def test_the_other_run_is_chosen_from_a_list(tab: OpenTab, aggregator: Aggregator) -> None:
    feed(aggregator, "bad", poison_step=None)
    feed_other(aggregator, "good", range(60, 70), 0.5, 1e-4)
    shown = tab("/?run=bad").until_live()
    shown.allow("422", "404")
    field = shown.page.get_by_label("Compare with a run")

    field.focus()
    option = shown.page.locator("datalist option")
    option.wait_for(state="attached")
    assert option.get_attribute("value") == "good"
    field.fill("good")
    field.press("Enter")
    shown.page.get_by_text("The run good has no step up to 59: nothing to compare with.").wait_for()
    assert "beside=good" in shown.page.url
    field.fill("nowhere")
    field.press("Enter")
    missing = shown.page.get_by_text("The run nowhere is not there: nothing to compare with.")
    missing.wait_for()
    field.fill("")
    field.press("Enter")
    missing.wait_for(state="hidden")
    assert "beside" not in shown.page.url
