"""All runs in short: worked out when something of one changed, and listed in pages."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from gradwatch_server.api.summaries import Summaries, Summary
from gradwatch_wire import Bye


def by_name(found: tuple[Summary, ...]) -> dict[str, Summary]:
    return {own.view.name: own for own in found}


def test_only_what_changed_is_worked_out_again(start: Any, peers: Any) -> None:
    """S31: an answer about all runs costs what changed since the last one."""
    running = start()
    for name in ("quiet", "busy"):
        peers(running.endpoint, run=name).attach().steps(0, 1.0)
        running.shows(name)
    busy = peers(running.endpoint, run="busy", rank=0).attach()
    running.shows("busy", attempt=2)

    async def scenario() -> None:
        summaries = Summaries(running.engine)
        before = by_name(await summaries.all())
        while (again := by_name(await summaries.all())) != before:  # not all was published yet
            before = again
        busy.steps(1, 2.0)
        running.shows("busy", frames=1)
        after = by_name(await summaries.all())

        assert after["quiet"] is before["quiet"]
        assert after["busy"] is not before["busy"]
        assert [own.view.name for own in summaries.newest] == ["busy", "quiet"]

    asyncio.run(scenario())


def test_time_alone_changes_what_is_said_of_a_silent_run(start: Any, peers: Any) -> None:
    """Its view stays as it is, and what is said of it does not."""
    running = start()
    peers(running.endpoint, run="gpt").attach().steps(0, 1.0)
    view = running.shows("gpt", frames=1)

    async def scenario() -> tuple[dict[str, int], dict[str, int]]:
        summaries = Summaries(running.engine)
        (before,) = await summaries.all()
        # Ten seconds later, for all that a reader can tell.
        ranks = tuple(replace(rank, last_ns=rank.last_ns - 10**10) for rank in view.ranks)
        running.engine.published.last_seen.clear()
        running.engine.published.runs = MappingProxyType({"gpt": replace(view, ranks=ranks)})
        (after,) = await summaries.all()
        return dict(before.ranks), dict(after.ranks)

    assert asyncio.run(scenario()) == ({"alive": 1}, {"silent": 1})


def test_runs_come_in_pages(service: Any, peers: Any) -> None:
    """S31: the last one heard of first; Link says where the next page is, until there is none."""
    for number in range(5):
        peer = peers(service.ingest, run=f"page-{number}").attach()
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


@pytest.mark.parametrize(
    "cursor", ["x", "1", "-x", "²-x", "1" * 30 + "-x", "WzFd", "WyJoZWFyZCIsMV0", "bnVsbA", ""]
)
def test_a_place_that_was_not_given_out_is_refused(service: Any, problem: Any, cursor: str) -> None:
    """It comes from a Link header."""
    status, detail = problem(service.get("/runs", params={"cursor": cursor}))

    assert (status, detail.partition(":")[0]) == (422, "query cursor")
