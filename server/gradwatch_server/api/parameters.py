"""Query parameters that a route does not know: refused, never ignored."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from gradwatch_server.api.security.access import STREAM_SUFFIX


async def refuse_unknown(request: Request) -> None:
    """Refuse a request with a query parameter that its route does not take.

    Raises:
        HTTPException: 422, with the parameter's name, and those that there are.
    """
    route: Any = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    known = _names(route.dependant)
    if route.path.endswith(STREAM_SUFFIX):
        known.add("token")  # which was looked at before
    for name in request.query_params:
        if name not in known:
            allowed = ", ".join(sorted(known)) or "no parameter"
            raise HTTPException(422, f"query: {name[:80]!a} is not known here; allowed: {allowed}")


def _names(dependant: Dependant) -> set[str]:
    own = {field.alias for field in dependant.query_params}
    return own.union(*map(_names, dependant.dependencies)) if dependant.dependencies else own
