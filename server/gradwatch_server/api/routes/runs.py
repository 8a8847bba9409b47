"""`/runs` and what is below it, but for alerts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from gradwatch_server.api.problems import Json
from gradwatch_server.api.state import Api
from gradwatch_server.core.views.gains import describe_gains
from gradwatch_server.core.views.groups import describe_groups
from gradwatch_server.core.views.noise_scale import describe_noise_scale
from gradwatch_server.core.views.ranks import describe_ranks
from gradwatch_server.core.views.runs import describe_run, name_run

router = APIRouter()

Attempt = Annotated[
    int | None, Query(ge=1, lt=1 << 53, description="An attempt; the current one without.")
]


@router.get("/runs", summary="All runs, the last one heard of first")
async def runs(api: Api) -> Json:
    return Json([api.summary(view) for view in api.newest_runs()])


@router.get("/runs/{run}", summary="One run: its attempts, ranks and layers")
async def run_(run: str, api: Api) -> Json:
    view = api.run(run)
    return Json(api.summary(view) | describe_run(view))


@router.get("/runs/{run}/health", summary="How a run is, and where it went wrong")
async def run_health(run: str, api: Api, attempt: Attempt = None) -> Json:
    return Json(api.health(api.run(run, attempt)))


@router.get("/runs/{run}/ranks", summary="Each rank: its state, and what was stored and lost")
async def run_ranks(run: str, api: Api) -> Json:
    view = api.run(run)
    return Json(name_run(view) | describe_ranks(view, api.last_seen, api.now_ns()))


@router.get("/runs/{run}/gains", summary="How the gradient grows from block to block")
async def run_gains(run: str, api: Api) -> Json:
    view = api.run(run)
    return Json(name_run(view) | describe_gains(view.gains))


@router.get("/runs/{run}/noise-scale", summary="How large a batch the gradient noise asks for")
async def run_noise_scale(run: str, api: Api) -> Json:
    view = api.run(run)
    return Json(name_run(view) | describe_noise_scale(view.noise_scale))


@router.get("/runs/{run}/groups", summary="Norms of the named groups, and their ratios")
async def run_groups(run: str, api: Api) -> Json:
    view = api.run(run)
    return Json(name_run(view) | describe_groups(view))
