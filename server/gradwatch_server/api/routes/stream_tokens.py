"""Tokens for the URL of a stream: a browser's `EventSource` sends no headers."""

from __future__ import annotations

from fastapi import APIRouter

from gradwatch_server.api.problems import Json
from gradwatch_server.api.security.access import STREAM_TOKEN_PATH
from gradwatch_server.api.security.stream_tokens import STREAM_TOKEN_S
from gradwatch_server.api.state import Api

router = APIRouter()


@router.post(STREAM_TOKEN_PATH, summary="A token that opens a stream, for its URL; soon worthless")
async def stream_token(api: Api) -> Json:
    return Json({"token": api.stream_tokens.issue(), "expires_in_s": STREAM_TOKEN_S})
