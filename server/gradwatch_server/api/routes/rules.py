"""The rules in force."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from gradwatch_server.api.problems import Json
from gradwatch_server.api.state import Api
from gradwatch_server.core.views.rules import describe_rules

router = APIRouter()

Run = Annotated[str | None, Query(description="A run; each rule says what it watches of it.")]


@router.get("/rules", summary="The rules in force with their settings, in the order of evaluation")
async def rules(api: Api, run: Run = None) -> Json:
    view = None if run is None else await api.run(run)
    return Json(describe_rules(api.published.rules, view))
