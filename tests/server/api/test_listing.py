"""All runs in short: worked out when something of one changed, and listed in pages."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest

from gradwatch_server.api import listing as listing_module
from gradwatch_server.api.listing import RunListing
from gradwatch_server.api.views import Views
from gradwatch_server.core.views.runs import RunSummary, summarize
from gradwatch_wire import Bye
from tests.support.aggregator import Aggregator
from tests.support.engine import Start
from tests.support.problems import problem


def by_name(found: tuple[RunSummary, ...]) -> dict[str, RunSummary]:
    return {own.name: own for own in found}


def listing_of(running: Any) -> RunListing:
    return RunListing(running.engine, Views(running.engine))


@pytest.mark.slow
def test_only_what_changed_is_worked_out_again(start: Start) -> None:
    """S31: an answer about all runs costs what changed since the last one."""
    running = start()
    for name in ("quiet", "busy"):
        running.peer(run=name).attach().steps(0, 1.0)
        running.shows(name)
    busy = running.peer(run="busy", rank=0).attach()
    running.shows("busy", attempt=2)

    async def scenario() -> None:
        listing = listing_of(running)
        before = by_name(await listing.all())
        while (again := by_name(await listing.all())) != before:  # not all was published yet
            before = again
        busy.steps(1, 2.0)
        running.shows("busy", frames=1)
        after = by_name(await listing.all())

        assert after["quiet"] is before["quiet"]
        assert after["busy"] is not before["busy"]
        assert list(after) == ["busy", "quiet"]

    asyncio.run(scenario())


def test_time_alone_changes_what_is_said_of_a_silent_run(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing_module, "SILENCE_EVERY_S", 0.0)
    running = start()
    running.peer(run="gpt").attach().steps(0, 1.0)
    view = running.shows("gpt", frames=1)

    async def scenario() -> tuple[dict[str, int], dict[str, int]]:
        listing = listing_of(running)
        (before,) = await listing.all()
        # Ten seconds later, for all that a reader can tell.
        ranks = tuple(replace(rank, last_ns=rank.last_ns - 10**10) for rank in view.ranks)
        running.engine.published.last_seen.clear()
        running.engine.published.views["gpt"] = replace(view, ranks=ranks)
        (after,) = await listing.all()
        return dict(before.ranks), dict(after.ranks)

    assert asyncio.run(scenario()) == ({"alive": 1}, {"silent": 1})


def test_a_listing_is_built_once_for_all_who_ask(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S31: and not again before something changes; the next one waits for its share of time."""
    running = start()
    running.peer(run="gpt").attach().steps(0, 1.0)
    running.shows("gpt", frames=1)
    running.engine.stop()
    built: list[str] = []

    def counted(view: Any, *rest: Any) -> RunSummary:
        built.append(view.name)
        return sum_up(view, *rest)

    sum_up = summarize
    monkeypatch.setattr(listing_module, "summarize", counted)

    async def scenario() -> None:
        listing = listing_of(running)
        answers = await asyncio.gather(*(listing.all() for _ in range(50)))
        assert all(answer is answers[0] for answer in answers)
        assert await listing.all() is answers[0]

    asyncio.run(scenario())
    assert built == ["gpt"]


def test_who_goes_away_takes_the_listing_from_nobody(start: Start) -> None:
    running = start()
    running.peer(run="gpt").attach()
    running.shows("gpt")

    async def scenario() -> None:
        listing = listing_of(running)
        gone, stays = (asyncio.create_task(listing.all()) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        assert [stay.name for stay in await stays] == ["gpt"]

    asyncio.run(scenario())


@pytest.mark.slow
def test_runs_come_in_pages(service: Aggregator) -> None:
    """S31: the last one heard of first; Link says where the next page is, until there is none."""
    for number in range(5):
        peer = service.peer(run=f"page-{number}").attach()
        peer.send(Bye())
        peer.acked()
        service.shows(peer)
    whole = service.json("/runs")
    path, got, links = "/runs?limit=2", [], 0
    while path:
        answer = service.get(path)
        assert len(answer.json()) <= 2
        got += answer.json()
        link = answer.headers.get("link")
        path = "" if link is None else re.fullmatch('<(.+)>; rel="next"', link)[1]  # type: ignore[index]
        links += bool(path)

    names = [own["run"] for own in whole]
    assert [own["run"] for own in got] == names
    assert names[:5] == [f"page-{number}" for number in (4, 3, 2, 1, 0)]
    assert links == (len(whole) - 1) // 2
    assert got == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    "cursor", ["x", "1", "-x", "²-x", "1" * 30 + "-x", "WzFd", "WyJoZWFyZCIsMV0", "bnVsbA", ""]
)
def test_a_place_that_was_not_given_out_is_refused(service: Aggregator, cursor: str) -> None:
    status, detail = problem(service.get("/runs", params={"cursor": cursor}))

    assert (status, detail.partition(":")[0]) == (422, "query cursor")
