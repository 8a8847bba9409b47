"""The layers of a run, which all curves and pictures name by their places."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from gradwatch_server.api.etags import has_tag, tag_with, tagged, unchanged
from gradwatch_server.api.layer_pages import Page
from gradwatch_server.api.problems import Json
from gradwatch_server.api.state import Api, ApiState, View
from gradwatch_server.core.views.runs import name_run
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.curves.layers import KnownLayers, module_of

router = APIRouter()


@router.get("/runs/{run}/layers", summary="Layers, in their order", response_class=Json)
async def layers(view: View, api: Api, request: Request, page: Page) -> Response:
    known = await api.curve_reads.run(lambda: _read(view, api))
    tag = tag_with(api, f"{view.attempt}-{known.digest}-{known.state}")
    if has_tag(request, tag):
        return unchanged(tag)
    places, end = page.of(range(len(known)), known.names)
    answer = {
        "manifest": known.digest,
        "order": "executed" if known.is_ordered else "registered",
        "total": len(known),
        "layers": [_describe(known, place) for place in places],
    }
    return tagged(Json(name_run(view) | answer | end), tag)


def _read(view: RunView, api: ApiState) -> KnownLayers:
    with api.history(view) as history:
        return layers_of(view, history.layers)


def layers_of(view: RunView, recorded: KnownLayers) -> KnownLayers:
    """Return the layers of an attempt; before its first frame those that were declared."""
    if len(recorded) or not view.names:
        return recorded
    return KnownLayers(view.names, view.numel, view.groups)


def _describe(known: KnownLayers, place: int) -> dict[str, object]:
    name = known.names[place]
    return {
        "index": place,
        "name": name,
        "module": module_of(name),
        "numel": known.numel[place],
        "dtype": (known.dtypes[place] or None) if known.dtypes else None,
        "shards": known.shards[place] if known.shards else None,
        "group": known.group_of(place),
    }
