"""Targets of notifications, and the outcome of each."""

from __future__ import annotations

from fastapi import APIRouter

from gradwatch_server.api.problems import Json
from gradwatch_server.api.state import Api

router = APIRouter()


@router.get("/notifiers", summary="The targets of notifications, and how each is")
async def notifiers(api: Api) -> Json:
    return Json([own.to_dict() for own in api.notifications.statuses()])
