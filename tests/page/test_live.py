"""The page while things change around it: a crash, a token, a tab that nobody sees."""

from __future__ import annotations

import signal
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from gradwatch_server.keys import make_keys
from tests.page.browsing import OpenTab, Tab
from tests.page.feeding import POISONED, STEPS, feed, more
from tests.support.aggregator import Aggregator
from tests.support.job import Job
from tests.support.waiting import wait_until

NO_ANSWER = (
    "ERR_CONNECTION_REFUSED",
    "ERR_INCOMPLETE_CHUNKED",
    "ERR_EMPTY",
    "ERR_CONNECTION_RESET",
    "ERR_NETWORK",
)


def test_an_aggregator_that_is_killed_is_said_to_be_gone_and_comes_back(
    tab: OpenTab, aggregator: Aggregator
) -> None:
    feed(aggregator, poison_step=None)
    shown = tab("/?run=gpt")
    shown.allow(*NO_ANSWER)
    shown.until_live()
    shown.page.locator(".verdict .facts", has_text=f"step {STEPS - 1}").wait_for()

    aggregator.stop(signal.SIGKILL)
    shown.page.locator("body[data-state=gone]").wait_for()
    notice = shown.text("#notice")
    assert "does not answer" in notice
    assert "Training does not wait for it" in notice
    assert "was so" in shown.text(".verdict h1")
    assert shown.page.locator("main.stale").count() == 1

    aggregator.start()
    # It is gone already where the page has tried by itself.
    button = shown.page.get_by_role("button", name="Try now")
    button.evaluate_all("found => found.forEach(own => own.click())")
    shown.page.locator("#notice", has_text="does not answer").wait_for(state="hidden")
    shown.until_live()
    assert shown.page.locator("main.stale").count() == 0


def test_a_real_training_is_watched_and_its_fault_found(
    tab: OpenTab, aggregator: Aggregator, train: Callable[..., Job]
) -> None:
    job = train(2, "--run", "real", "--steps", "60", "--fault", "batch", "--fault-rank", "1")
    shown = tab("/")
    wait_until(lambda: aggregator.json("/runs"), "the training is attached")
    shown.page.get_by_role("link", name="real").click()
    shown.page.locator(".alerts li[data-alert]").first.wait_for()
    job.wait()
    shown.page.locator(".verdict h1", has_text="ended").wait_for()
    shown.page.locator(".facts", has_text="first NaN or Inf at step 20, rank 1").wait_for()
    shown.page.locator(".ruler .bad").first.wait_for()
    health = aggregator.health_of_ended("real")
    assert f"loss {health['loss']:.2f}"[:8] in shown.text(".verdict .facts")
    assert health["first_bad"]["step"] == 20
    shown.page.keyboard.press("n")
    assert "step 20, L2 norm NaN" in shown.page.locator("#cursor").text_content()
    assert shown.page.locator(".ranks li").count() == 2


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    make_keys(tmp_path / "keys")
    return tomllib.loads((tmp_path / "keys" / "tokens.toml").read_text())


@pytest.fixture
def locked(
    tokens: dict[str, str], aggregator: Aggregator, tmp_path: Path, tab: OpenTab
) -> Aggregator:
    return _lock(aggregator, tmp_path)


def _lock(aggregator: Aggregator, tmp_path: Path) -> Aggregator:
    aggregator.stop()
    aggregator.environ["GRADWATCH_KEYS_DIR"] = str(tmp_path / "keys")
    aggregator.start()
    return aggregator


def test_a_token_is_asked_for_and_kept_for_the_tab(
    tab: OpenTab, locked: Aggregator, tokens: dict[str, str]
) -> None:
    shown = tab("/")
    shown.allow("401")
    field = shown.page.get_by_label("Token", exact=True)
    field.wait_for()
    assert "asks for a token" in shown.text("#notice")
    field.fill("not-this-one")
    shown.page.get_by_role("button", name="Use it").click()
    shown.page.locator("#notice", has_text="Not this one: ").wait_for()
    shown.page.get_by_label("Token", exact=True).fill(tokens["read"])
    shown.page.get_by_role("button", name="Use it").click()
    shown.page.get_by_text("No run yet.").wait_for()
    shown.until_live()
    shown.page.reload()
    shown.page.get_by_text("No run yet.").wait_for()
    assert shown.page.locator("#notice section").count() == 0


def test_a_token_in_the_address_is_taken_out_of_it(
    tab: OpenTab, locked: Aggregator, tokens: dict[str, str]
) -> None:
    shown = tab(f"/#token={tokens['read']}")
    shown.page.get_by_text("No run yet.").wait_for()
    shown.until_live()
    assert shown.page.url == f"{locked.url}/"
    kept = "() => [sessionStorage, localStorage].map((each) => each.getItem('gradwatch.token'))"
    assert shown.evaluate(kept) == [tokens["read"], None]
    shown.page.reload()
    shown.until_live()


def test_a_token_that_expires_in_an_open_page_is_asked_for_and_the_picture_stays(
    tab: OpenTab, aggregator: Aggregator, tokens: dict[str, str], tmp_path: Path
) -> None:
    feed(aggregator, poison_step=None)
    _lock(aggregator, tmp_path)
    shown = tab(f"/?run=gpt#token={tokens['read']}")
    shown.allow(*NO_ANSWER, "401")
    shown.until_live()
    shown.page.locator(".surface[aria-label*='60 steps']").wait_for()
    aggregator.stop()
    file = tmp_path / "keys" / "tokens.toml"
    file.write_text(file.read_text().replace(tokens["read"], "another-token-of-32-characters-00"))
    aggregator.start()

    shown.page.locator("body[data-state=token]").wait_for()
    shown.evaluate("() => { for (let at = 0; at < 5; at += 1) gradwatchPage.schedule.mark(); }")
    notice = shown.text("#notice")
    assert "or the one you had has changed" in notice
    assert "Not this one" not in notice
    assert shown.page.locator("main.stale .heat canvas").is_visible()

    # The link that the start of the aggregator prints, opened in the same tab: only `#…` differs.
    shown.evaluate("() => { location.hash = 'token=another-token-of-32-characters-00'; }")
    shown.until_live()
    assert shown.page.locator("#notice section").count() == 0
    assert "#" not in shown.page.url


def test_a_tab_that_nobody_sees_gives_its_stream_back(tab: OpenTab, aggregator: Aggregator) -> None:
    peer = feed(aggregator, poison_step=None)
    shown: Tab = tab("/?run=gpt")
    shown.until_live()
    shown.page.locator(".verdict .facts", has_text=f"step {STEPS - 1}").wait_for()
    wait_until(lambda: _num_streams(aggregator) == 1, "its stream is open")

    shown.evaluate("() => gradwatchPage.stream.hide()")  # what comes 20 s after it is hidden
    wait_until(lambda: _num_streams(aggregator) == 0, "its stream is given back")
    more(peer, range(STEPS, STEPS + 2), poison_step=STEPS)
    aggregator.shows(peer)
    shown.evaluate("() => gradwatchPage.stream.visibility()")

    shown.page.locator(".alerts li[data-alert] .message", has_text=POISONED).wait_for()
    wait_until(lambda: _num_streams(aggregator) == 1, "its stream is open again")


def test_what_did_not_change_is_not_sent_again(tab: OpenTab, aggregator: Aggregator) -> None:
    """The page asks every second; the browser has what it was answered before, and its tag."""
    feed(aggregator, poison_step=None)
    shown = tab("/?run=gpt").until_live()

    wait_until(
        lambda: shown.evaluate("""() => performance.getEntriesByType("resource").some(
          (each) => each.name.endsWith("/health") && each.transferSize < each.encodedBodySize,
        )""")
    )


def _num_streams(aggregator: Aggregator) -> float:
    metrics = aggregator.get("/metrics").text
    name = 'gradwatch_budget_used{budget="streams_per_caller"}'
    found = [line for line in metrics.splitlines() if line.startswith(name)]
    return float(found[0].rpartition(" ")[2]) if found else 0.0
