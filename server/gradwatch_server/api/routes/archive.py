"""All that is stored of a run that is over, in pages, so that it can be looked at elsewhere."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Final

from fastapi import APIRouter, HTTPException, Query
from starlette.responses import Response

from gradwatch_server.api.state import Api, ApiState
from gradwatch_server.storage.archive_pages import (
    START,
    ArchivePages,
    Cursor,
    NotSavedYetError,
    decode_cursor,
    encode_cursor,
)
from gradwatch_server.storage.store import StorageError

router = APIRouter()

MEDIA_TYPE: Final = "application/vnd.gradwatch.archive"

NEXT_HEADER: Final = "Gradwatch-Next"
"""Has the cursor of the next page; the last one has none."""

RETRY_AFTER_S: Final = 2

From = Annotated[
    str | None, Query(max_length=100, description="Where the page before ended: its header says.")
]


class Archive(Response):
    """A page of frames."""

    media_type = MEDIA_TYPE


@router.get("/runs/{run}/archive", summary="All that is stored of a run", response_class=Archive)
async def archive(run: str, api: Api, cursor: From = None) -> Response:
    view = api.run(run)
    if any(own.is_live for own in (view, *view.others)):
        raise HTTPException(409, f"run {view.name} is live: an archive is of a run that is over")
    try:
        begin = START if cursor is None else decode_cursor(cursor)
    except ValueError as error:
        raise HTTPException(422, f"query cursor: {error}") from error
    body, after = await api.curve_reads.run(lambda: _page(api, view.name, begin))
    headers = {} if after is None else {NEXT_HEADER: encode_cursor(after)}
    return Archive(body, headers=headers)


def _page(api: ApiState, run: str, cursor: Cursor) -> tuple[bytes, Cursor | None]:
    if api.open_history is None:
        raise HTTPException(503, "the store cannot be read beside the engine")
    try:
        with closing(api.open_history()) as history:
            return ArchivePages(history, run).page(cursor)
    except NotSavedYetError as error:
        raise HTTPException(503, str(error), {"Retry-After": str(RETRY_AFTER_S)}) from error
    except StorageError as error:
        raise HTTPException(503, f"the store cannot be read: {error}") from error
