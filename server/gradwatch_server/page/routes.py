"""`/` and `/static/`: the page's files with their headers. They hold no data and need no token."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gradwatch_server.page.files import PageFiles, StaticFile, read_files

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""What the page may load and run: its own files, and no text that becomes markup or script."""

HEADERS: Final = {"Content-Security-Policy": POLICY}


def make_routes(files: PageFiles | None = None) -> list[Route]:
    """Return the routes of the page.

    Args:
        files: What they serve; what is installed by default.
    """
    page = files or read_files()

    async def index(request: Request) -> Response:
        return _answer(request, page.index, "no-cache")

    async def static(request: Request) -> Response:
        """Serve a file. One of another version is not there: the page that asks for it is old."""
        path = request.path_params["path"]
        file = page.files.get(path)
        if file is None or request.path_params["version"] != page.digest:
            raise HTTPException(
                404, f"no file {path[:80]!a} in this version of the page: reload it"
            )
        return _answer(request, file, "public, max-age=31536000, immutable")

    return [
        Route("/", index, include_in_schema=False),
        Route("/static/{version}/{path:path}", static, include_in_schema=False),
    ]


def _answer(request: Request, file: StaticFile, caching: str) -> Response:
    """Return a file, compressed for who can read that."""
    headers = HEADERS | {"Cache-Control": caching, "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(file.content, headers=headers, media_type=file.media_type)
    headers["Content-Encoding"] = "gzip"
    return Response(file.compressed, headers=headers, media_type=file.media_type)
