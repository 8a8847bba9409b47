"""`/` and `/static/`: the page's files with their headers. They hold no data and need no token."""

from __future__ import annotations

import gzip
import hashlib
import html
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER: Final = Path(__file__).with_name("static")

LINES: Final = "vendor/uplot/uPlot.esm.js"
"""Library that draws lines. It is not in the repository: `scripts/vendor` gets it."""

TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""Suffix to media type; nothing else is served."""


@dataclass(frozen=True, slots=True)
class PageFiles:
    """All files of the page.

    Args:
        files: Path below the folder to content, without the page itself.
        digest: Name of this version of all of them: it changes when one of them does.
        index: The page itself, with the paths of this version in it.
    """

    files: dict[str, bytes]
    digest: str
    index: bytes


def read_files(folder: Path = FOLDER) -> PageFiles:
    """Read the page's files below a folder, `index.html` among them.

    Raises:
        OSError: A file cannot be read.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in TYPES and path.is_file()]
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    version = digest.hexdigest()[:16]
    template = files.pop("index.html").decode()
    return PageFiles(files, version, _fill(template, f"/static/{version}", files).encode())


def _fill(template: str, base: str, files: dict[str, bytes]) -> str:
    """Put the paths of this version into the page.

    Every module is named at once, so that none waits for another one to name it.
    """
    kinds = {".css": "stylesheet", ".js": "modulepreload"}
    links = [
        f'<link rel="{kind}" href="{base}/{name}">'
        for suffix, kind in kinds.items()
        for name in sorted(files)
        if name.endswith(suffix)
    ]
    lines = html.escape(f"{base}/{LINES}") if LINES in files else ""
    return (
        template.replace("<!-- links -->", "\n    ".join(links))
        .replace("{static}", base)
        .replace("{lines}", lines)
    )


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
"""Content policy: the page loads its own files, and no text becomes markup or script."""

HEADERS: Final = {"Content-Security-Policy": POLICY}


def make_routes(files: PageFiles | None = None) -> list[Route]:
    page = files or read_files()

    async def index(request: Request) -> Response:
        return _answer(request, page.index, ".html", "no-cache")

    async def static(request: Request) -> Response:
        """Serve a file. One of another version is not there: the page that asks for it is old."""
        path = request.path_params["path"]
        content = page.files.get(path)
        if content is None or request.path_params["version"] != page.digest:
            raise HTTPException(
                404, f"no file {path[:80]!a} in this version of the page: reload it"
            )
        suffix = PurePosixPath(path).suffix
        return _answer(request, content, suffix, "public, max-age=31536000, immutable")

    return [
        Route("/", index, include_in_schema=False),
        Route("/static/{version}/{path:path}", static, include_in_schema=False),
    ]


def _answer(request: Request, content: bytes, suffix: str, caching: str) -> Response:
    headers = HEADERS | {"Cache-Control": caching, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        content = _compress(content)
        headers["Content-Encoding"] = "gzip"
    return Response(content, headers=headers, media_type=TYPES[suffix])


@cache
def _compress(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)
