"""`/runs` and what is below it, but for alerts."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from gradwatch_server.api.etags import has_tag, tag_of, tag_with, tagged, unchanged
from gradwatch_server.api.problems import Json, encode
from gradwatch_server.api.state import Api, ApiState, View
from gradwatch_server.core.views.groups import describe_groups
from gradwatch_server.core.views.ranks import describe_ranks
from gradwatch_server.core.views.runs import (
    RunSummary,
    describe_gains,
    describe_noise_scale,
    describe_run,
    name_run,
    small_curve,
)
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.engine.run_commands import DeleteRun
from gradwatch_wire.health import Phase, Status

_KEY_TYPES: Final[Mapping[Order, tuple[type, ...]]] = {
    "heard": (int, str),
    "worst": (bool, bool, int, int, str),
    "name": (str,),
    "step": (int, str),
}
"""Types of the parts of each order's key."""

MANY: Final = 500
"""Ranks, or layers, of which an answer is made in a thread, so that others get theirs meanwhile."""

router = APIRouter()

Limit = Annotated[
    int | None, Query(ge=1, le=100_000, description="Number of runs; all by default.")
]

Cursor = Annotated[
    str | None, Query(max_length=4_000, description="Place from the `Link` of the page before.")
]

Text = Annotated[str | None, Query(max_length=500, description="Text in the name.")]

Spark = Annotated[
    int | None, Query(ge=1, le=512, description="Number of values of the small curve of the norm.")
]

Confirm = Annotated[str | None, Query(max_length=1_000, description="Name of the run, once more.")]

Order = Literal["heard", "worst", "name", "step"]

_STATUSES: Final = list(Status)


def _badness(summary: RunSummary) -> tuple[Any, ...]:
    badness = _STATUSES.index(summary.status)
    is_well = badness <= _STATUSES.index(Status.HEALTHY)
    return is_well, summary.has_ended, -badness, -summary.updated_ns, summary.name


_KEYS: Final[Mapping[Order, Callable[[RunSummary], tuple[Any, ...]]]] = {
    "heard": lambda summary: (-summary.updated_ns, summary.name),
    "worst": _badness,
    "name": lambda summary: (summary.name,),
    "step": lambda summary: (-summary.step, summary.name),
}
"""Sort keys of the orders, the least first; no two runs have the same key."""


@dataclass(frozen=True, slots=True)
class RunSelection:
    """Choice of runs, and their order.

    Args:
        q: Text that the name has in it, upper and lower case alike; None for all.
    """

    q: str | None = None
    status: Status | None = None
    phase: Phase | None = None
    sort: Order = "heard"

    def of(self, runs: Sequence[RunSummary]) -> tuple[RunSummary, ...]:
        text = None if self.q is None else self.q.casefold()
        chosen = [
            summary
            for summary in runs
            if (text is None or text in summary.name.casefold())
            and self.status in (None, summary.status)
            and self.phase in (None, summary.phase)
        ]
        return tuple(sorted(chosen, key=self.key))

    def key(self, summary: RunSummary) -> tuple[Any, ...]:
        return _KEYS[self.sort](summary)


def cursor_of(sort: Order, last: RunSummary) -> str:
    """Return the cursor of the page after one that ends with a run."""
    plain = json.dumps([sort, *RunSelection(sort=sort).key(last)], separators=(",", ":"))
    return base64.urlsafe_b64encode(plain.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def parse_cursor(given: str, sort: Order) -> tuple[Any, ...]:
    """Return the key of the last run of the page before.

    Raises:
        HTTPException: 422, if it is none, or of another order.
    """
    refused = HTTPException(
        422,
        f"query cursor: the one of a Link header of sort={sort}, got {given[:80]!a}; "
        "leave it out for the first page",
    )
    try:
        data = base64.b64decode(given + "=" * (-len(given) % 4), b"-_", validate=True)
        plain = json.loads(data)
    except (binascii.Error, ValueError, RecursionError) as error:
        raise refused from error
    if not isinstance(plain, list) or plain[:1] != [sort]:
        raise refused
    if tuple(map(type, plain[1:])) != _KEY_TYPES[sort]:
        raise refused
    return tuple(plain[1:])


@router.get("/runs", summary="All runs, the last one heard of first", response_class=Json)
async def runs(
    api: Api,
    request: Request,
    limit: Limit = None,
    cursor: Cursor = None,
    q: Text = None,
    status: Annotated[Status | None, Query(description="Only this status.")] = None,
    phase: Annotated[Phase | None, Query(description="Only this phase.")] = None,
    sort: Annotated[Order, Query(description="`heard`, `worst`, `name` or `step`.")] = "heard",
    spark: Spark = None,
) -> Response:
    listed = await api.listing.all()
    tag = tag_with(api, api.listing.number)
    if has_tag(request, tag):
        return unchanged(tag)
    choice = RunSelection(q, status, phase, sort)
    chosen = choice.of(listed)
    if cursor is not None:
        last = parse_cursor(cursor, sort)
        chosen = tuple(summary for summary in chosen if choice.key(summary) > last)
    page = chosen if limit is None else chosen[:limit]
    rows = (
        [api.listing.row(summary) for summary in page]
        if spark is None
        else await _curves(api, page, spark)
    )
    body = b"[" + b",".join(rows) + b"]"
    answer = tagged(Response(body, media_type="application/json"), tag)
    if len(page) < len(chosen):
        given = {"q": q, "status": status, "phase": phase, "sort": sort, "spark": spark}
        more = "".join(
            f"&{name}={quote(str(value), safe='')}" for name, value in given.items() if value
        )
        path = f"/runs?limit={limit}&cursor={cursor_of(sort, page[-1])}{more}"
        answer.headers["Link"] = f'<{path}>; rel="next"'
    return answer


async def _curves(api: ApiState, page: Sequence[RunSummary], spark: int) -> list[bytes]:
    """Return the rows of runs with their small curves, JSON; a run that is gone has none."""
    views = {view.name: view for view in await api.views.find_all(summary.name for summary in page)}
    rows = []
    for summary in page:
        curve = small_curve(views[summary.name], spark) if summary.name in views else []
        more = {
            "norm": summary.norm,
            "step_time_s": summary.step_time_s,
            "live_attempts": summary.live_attempts,
            "alerts": summary.firing,
            "spark": curve,
        }
        rows.append(encode(summary.row() | more))
    return rows


async def _answer(view: RunView, make: Callable[[], Any]) -> Json:
    if len(view.ranks) + len(view.names) <= MANY:
        return Json(make())
    return await run_in_threadpool(lambda: Json(make()))


@router.get("/runs/{run}", summary="One run: attempts, ranks, layers, totals")
async def run_(view: View, api: Api) -> Json:
    return await _answer(view, lambda: api.summary(view) | describe_run(view))


@router.delete(
    "/runs/{run}", status_code=204, response_class=Response, summary="Delete a run that is over"
)
async def delete_run(run: str, api: Api, confirm: Confirm = None) -> Response:
    await api.run(run)
    if confirm != run:
        given = "nothing" if confirm is None else ascii(confirm[:80])
        raise HTTPException(422, f"query confirm: the name of the run, {run!a}, got {given}")
    await api.command(DeleteRun(run, api.engine.deletions))
    return Response(status_code=204)


@router.get(
    "/runs/{run}/health", summary="Health of a run, and where it went wrong", response_class=Json
)
async def run_health(view: View, api: Api, request: Request) -> Response:
    tag = tag_of(api, view)
    if has_tag(request, tag):
        return unchanged(tag)
    return tagged(await _answer(view, lambda: api.health(view)), tag)


@router.get("/runs/{run}/ranks", summary="State of each rank, and its records stored and lost")
async def run_ranks(view: View, api: Api) -> Json:
    return await _answer(
        view, lambda: name_run(view) | describe_ranks(view, api.last_seen, api.now_ns())
    )


@router.get("/runs/{run}/gains", summary="Growth of the gradient from block to block")
async def run_gains(view: View) -> Json:
    return Json(name_run(view) | describe_gains(view.gains))


@router.get("/runs/{run}/noise-scale", summary="Gradient noise scale: a batch size in samples")
async def run_noise_scale(view: View) -> Json:
    return Json(name_run(view) | describe_noise_scale(view.noise_scale))


@router.get("/runs/{run}/groups", summary="Norms of the named groups, and their ratios")
async def run_groups(view: View) -> Json:
    return Json(name_run(view) | describe_groups(view))
