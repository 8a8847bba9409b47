"""The rules in force."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from gradwatch_server.api.problems import Json
from gradwatch_server.api.state import Api
from gradwatch_server.core.views.rules import describe_rules

router = APIRouter()

Run = Annotated[
    str | None, Query(description="Run; each rule has the number of its watched layers.")
]


@router.get("/rules", summary="Rules in force: words, settings, false alerts in 100,000 steps")
async def rules(api: Api, run: Run = None) -> Json:
    view = None if run is None else await api.run(run)
    return Json(describe_rules(api.published.rules, view))
