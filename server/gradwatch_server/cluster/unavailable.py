"""Answers to who may ask again in a moment."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request
from starlette.responses import Response

from gradwatch_server.api.problems import Problem
from gradwatch_server.storage.store import StorageError

RETRY_AFTER_S: Final = 1


def unavailable(detail: str, **more: Any) -> Problem:
    """Return the answer to who may ask again in a moment, with further fields."""
    problem = Problem(503, detail, **more)
    problem.headers["Retry-After"] = str(RETRY_AFTER_S)
    return problem


def tell_storage_errors(app: FastAPI) -> None:
    """Answer so where the ledger or the log cannot be read: it is on other machines."""

    @app.exception_handler(StorageError)
    async def on_storage_error(_: Request, error: StorageError) -> Response:
        return unavailable(str(error))
