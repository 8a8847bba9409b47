"""Errors as `application/problem+json` (RFC 9457), and JSON in which NaN survives."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from gradwatch_wire.jsonable import jsonable

logger = logging.getLogger(__name__)


class Json(JSONResponse):
    """JSON with non-finite numbers as the strings `"NaN"`, `"Infinity"`, `"-Infinity"`.

    All of it is ASCII: a layer may be called anything, and what `curl` prints goes to a terminal,
    which acts on U+009B as it does on an escape sequence.
    """

    def render(self, content: Any) -> bytes:
        return encode(content)


def encode(content: Any) -> bytes:
    """Return plain data as `Json` sends it."""
    return json.dumps(jsonable(content), separators=(",", ":")).encode("ascii")


class Problem(Json):
    """An error document."""

    media_type = "application/problem+json"

    def __init__(self, status: int, detail: str) -> None:
        title = HTTPStatus(status).phrase
        super().__init__(
            {"type": "about:blank", "title": title, "status": status, "detail": detail},
            status_code=status,
        )


def install(app: FastAPI) -> None:
    """Answer every error of the app as a problem document."""

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        detail = str(error.detail)
        if detail == HTTPStatus.NOT_FOUND.phrase:  # what the router says where no route fits
            detail = (
                f"nothing is at {request.url.path[:120]!a}; the page is at /, the runs at /runs"
            )
        problem = Problem(error.status_code, detail)
        problem.headers.update(error.headers or {})
        return problem

    @app.exception_handler(RequestValidationError)
    async def on_bad_request(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = " ".join(str(part) for part in first["loc"])
        return Problem(422, f"{where}: {first['msg']}, got {ascii(first.get('input'))[:80]}")

    @app.exception_handler(Exception)
    async def on_fault(request: Request, error: Exception) -> Response:
        logger.error("%a %a failed", request.method, request.url.path, exc_info=error)
        return Problem(500, "a fault of gradwatch; its log says more")
