"""`/healthz`, `/readyz`, `/metrics` and `/notifiers`: state of the aggregator itself."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from gradwatch_server.api.etags import boot_of
from gradwatch_server.api.metrics.exposition import CONTENT_TYPE
from gradwatch_server.api.problems import Json, Problem
from gradwatch_server.api.state import Api
from gradwatch_server.core.alerting.alert import isotime
from gradwatch_wire import __version__

router = APIRouter()


@router.get(
    "/healthz",
    summary="Version, start (`boot`), cursor of the newest alert event, ingest endpoint, time",
)
async def healthz(api: Api) -> dict[str, str | int | None]:
    return {
        "status": "ok",
        "version": __version__,
        "cursor": api.published.cursor,
        "boot": boot_of(api),
        "ingest": api.ingest,
        "now": isotime(api.now_ns()),
    }


@router.get(
    "/readyz",
    summary="Whether records are taken in and stored; 503 with the reason if not",
    response_model=None,
)
async def readyz(api: Api) -> dict[str, str | int] | Problem:
    fault = api.published.fault
    if fault is not None:
        return Problem(503, fault)
    if not api.engine.is_alive():
        return Problem(503, "the engine is not running")
    answer: dict[str, str | int] = {"status": "ready"}
    if api.published.num_away:
        answer["recovering"] = api.published.num_away
    if (loss := api.published.recent_loss(api.now_ns())) is not None:
        answer["lost"] = loss.text
    return answer


@router.get("/metrics", response_class=Response, summary="Metrics for Prometheus")
async def metrics_(api: Api) -> Response:
    return Response(await api.metrics(), media_type=CONTENT_TYPE)


@router.get("/notifiers", summary="Targets of notifications, and the state of each")
async def notifiers(api: Api) -> Json:
    return Json([status.to_dict() for status in api.notifications.statuses()])


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Json:
    return Json(request.app.openapi())
