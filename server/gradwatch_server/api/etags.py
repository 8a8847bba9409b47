"""Entity tags: who has an answer already, of this start and revision, is not sent it again."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from gradwatch_server.api.state import ApiState
from gradwatch_server.core.views.snapshot import RunView


def boot_of(api: ApiState) -> str:
    """Return what tells this start of the aggregator from others."""
    return api.engine.boot_id.hex()


def tag_of(api: ApiState, view: RunView) -> str:
    """Return the tag of what is known of an attempt just now."""
    return tag_with(api, f"{view.attempt}-{api.views.tag(view)}")


def tag_with(api: ApiState, number: int | str) -> str:
    return f'"{boot_of(api)}.{number}"'


def has_tag(request: Request, tag: str) -> bool:
    """Tell whether who asks has the answer of this tag already, or any at all."""
    given = ",".join(request.headers.getlist("if-none-match"))
    return not {tag, "*"}.isdisjoint(each.strip().removeprefix("W/") for each in given.split(","))


def unchanged(tag: str) -> Response:
    """Return the answer to one who has it already."""
    return tagged(Response(status_code=304), tag)


def tagged(answer: Response, tag: str) -> Response:
    answer.headers.update({"ETag": tag, "Cache-Control": "no-cache"})
    return answer
