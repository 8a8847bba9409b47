"""`/runs` and what is below it, but for alerts."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Query
from starlette.responses import Response

from gradwatch_server.api.problems import Json
from gradwatch_server.api.state import Api, View
from gradwatch_server.api.summaries import Summary
from gradwatch_server.core.views.gains import describe_gains
from gradwatch_server.core.views.groups import describe_groups
from gradwatch_server.core.views.noise_scale import describe_noise_scale
from gradwatch_server.core.views.ranks import describe_ranks
from gradwatch_server.core.views.runs import describe_run, name_run

router = APIRouter()

Limit = Annotated[int | None, Query(ge=1, le=100_000, description="How many; all without.")]
After = Annotated[
    str | None, Query(max_length=1_000, description="Where the page before ended: its Link says.")
]


@router.get("/runs", summary="All runs, the last one heard of first", response_class=Json)
async def runs(api: Api, limit: Limit = None, after: After = None) -> Response:
    found = await api.summaries.all()
    if after is not None:
        last = _parse(after)
        found = tuple(own for own in found if own.key < last)
    page = found if limit is None else found[:limit]
    answer = Response(
        b"[" + b",".join(own.encoded for own in page) + b"]", media_type="application/json"
    )
    if len(page) < len(found):
        answer.headers["Link"] = f'</runs?limit={limit}&after={_place(page[-1])}>; rel="next"'
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


@router.get("/runs/{run}", summary="One run: its attempts, ranks and layers")
async def run_(view: View, api: Api) -> Json:
    return Json(api.summary(view) | describe_run(view))


@router.get("/runs/{run}/health", summary="How a run is, and where it went wrong")
async def run_health(view: View, api: Api) -> Json:
    return Json(api.health(view))


@router.get("/runs/{run}/ranks", summary="Each rank: its state, and what was stored and lost")
async def run_ranks(view: View, api: Api) -> Json:
    return Json(name_run(view) | describe_ranks(view, api.last_seen, api.now_ns()))


@router.get("/runs/{run}/gains", summary="How the gradient grows from block to block")
async def run_gains(view: View) -> Json:
    return Json(name_run(view) | describe_gains(view.gains))


@router.get("/runs/{run}/noise-scale", summary="How large a batch the gradient noise asks for")
async def run_noise_scale(view: View) -> Json:
    return Json(name_run(view) | describe_noise_scale(view.noise_scale))


@router.get("/runs/{run}/groups", summary="Norms of the named groups, and their ratios")
async def run_groups(view: View) -> Json:
    return Json(name_run(view) | describe_groups(view))
