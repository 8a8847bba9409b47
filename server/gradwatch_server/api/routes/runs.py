"""`/runs` and what is below it, but for alerts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from gradwatch_server.api.problems import Json, encode
from gradwatch_server.api.run_rows import Choice, Order, describe_row
from gradwatch_server.api.state import Api, View
from gradwatch_server.api.summaries import Summary
from gradwatch_server.core.views.gains import describe_gains
from gradwatch_server.core.views.groups import describe_groups
from gradwatch_server.core.views.noise_scale import describe_noise_scale
from gradwatch_server.core.views.ranks import describe_ranks
from gradwatch_server.core.views.runs import describe_run, name_run
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.engine.run_commands import DeleteRun
from gradwatch_wire.health import Phase, Status

MANY: Final = 500
"""Ranks, or layers, of which an answer is made in a thread, so that others get theirs meanwhile."""

router = APIRouter()

Limit = Annotated[int | None, Query(ge=1, le=100_000, description="How many; all without.")]
After = Annotated[
    str | None, Query(max_length=1_000, description="Where the page before ended: its Link says.")
]

Text = Annotated[str | None, Query(max_length=500, description="Names that have this in them.")]
Spark = Annotated[
    int | None, Query(ge=1, le=512, description="Values of a small curve of the norm, and more.")
]
Confirm = Annotated[
    str | None, Query(max_length=1_000, description="The name of the run once more.")
]


@router.get("/runs", summary="All runs, the last one heard of first", response_class=Json)
async def runs(
    api: Api,
    limit: Limit = None,
    after: After = None,
    q: Text = None,
    status: Status | None = None,
    phase: Phase | None = None,
    sort: Order = "heard",
    spark: Spark = None,
) -> Response:
    if after is not None and sort != "heard":
        raise HTTPException(422, "query after: pages go by when runs were heard of; leave out sort")
    found = Choice(q, status, phase, sort).of(await api.summaries.all())
    if after is not None:
        last = _parse(after)
        found = tuple(own for own in found if own.key < last)
    page = found if limit is None else found[:limit]
    rows = [own.encoded for own in page]
    if spark is not None:
        rows = [encode(describe_row(own, spark)) for own in page]
    answer = Response(b"[" + b",".join(rows) + b"]", media_type="application/json")
    if len(page) < len(found):
        given = {"q": q, "status": status, "phase": phase, "spark": spark}
        more = "".join(f"&{name}={quote(str(own))}" for name, own in given.items() if own)
        if sort == "heard":
            place = _place(page[-1])
            answer.headers["Link"] = f'</runs?limit={limit}&after={place}{more}>; rel="next"'
    return answer


def _place(last: Summary) -> str:
    """Return where a page ends that ends with a run."""
    time_ns, name = last.key
    return quote(f"{time_ns}-{name}", safe="")


def _parse(after: str) -> tuple[int, str]:
    time_ns, _, name = after.partition("-")
    if not (time_ns.isdecimal() and time_ns.isascii() and len(time_ns) < 20 and name):
        raise HTTPException(422, f"query after: the one of a Link header, got {after[:80]!a}")
    return int(time_ns), name


async def _answer(view: RunView, make: Callable[[], Any]) -> Json:
    """Return what is made of a view."""
    if len(view.ranks) + len(view.names) <= MANY:
        return Json(make())
    return await run_in_threadpool(lambda: Json(make()))


@router.get("/runs/{run}", summary="One run: its attempts, ranks and layers")
async def run_(view: View, api: Api) -> Json:
    return await _answer(view, lambda: api.summary(view) | describe_run(view))


@router.delete(
    "/runs/{run}", status_code=204, response_class=Response, summary="Delete a run that is over"
)
async def delete_run(run: str, api: Api, confirm: Confirm = None) -> Response:
    api.run(run)
    if confirm != run:
        given = "nothing" if confirm is None else ascii(confirm[:80])
        raise HTTPException(422, f"query confirm: the name of the run, {run!a}, got {given}")
    await api.command(DeleteRun(run, api.engine.deletions))
    return Response(status_code=204)


@router.get("/runs/{run}/health", summary="How a run is, and where it went wrong")
async def run_health(view: View, api: Api) -> Json:
    return await _answer(view, lambda: api.health(view))


@router.get("/runs/{run}/ranks", summary="Each rank: its state, and what was stored and lost")
async def run_ranks(view: View, api: Api) -> Json:
    return await _answer(
        view, lambda: name_run(view) | describe_ranks(view, api.last_seen, api.now_ns())
    )


@router.get("/runs/{run}/gains", summary="How the gradient grows from block to block")
async def run_gains(view: View) -> Json:
    return Json(name_run(view) | describe_gains(view.gains))


@router.get("/runs/{run}/noise-scale", summary="How large a batch the gradient noise asks for")
async def run_noise_scale(view: View) -> Json:
    return Json(name_run(view) | describe_noise_scale(view.noise_scale))


@router.get("/runs/{run}/groups", summary="Norms of the named groups, and their ratios")
async def run_groups(view: View) -> Json:
    return Json(name_run(view) | describe_groups(view))
