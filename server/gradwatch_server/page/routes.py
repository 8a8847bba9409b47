"""`/` and `/static/`: the page's files with their headers. They hold no data and need no token."""

from __future__ import annotations

import gzip
import hashlib
import html
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER: Final = Path(__file__).with_name("static")

LINES: Final = "vendor/uplot/uPlot.esm.js"
"""What draws lines. It is not of ours and not in the repository: `scripts/vendor` gets it."""

TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""Suffix to media type; nothing else is served."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as it is sent."""

    content: bytes
    media_type: str
    compressed: bytes

    @classmethod
    def of(cls, content: bytes, media_type: str) -> Self:
        """Return a file, compressed once for all who ask for it."""
        return cls(content, media_type, gzip.compress(content, mtime=0))


@dataclass(frozen=True, slots=True)
class PageFiles:
    """All files of the page.

    Args:
        digest: Names this version of all of them: it changes when one of them does.
        index: The page itself, with the paths of this version in it.
    """

    files: dict[str, StaticFile]
    digest: str
    index: StaticFile


def read_files(folder: Path = FOLDER) -> PageFiles:
    """Read the page's files.

    Args:
        folder: Where they are, `index.html` among them.

    Raises:
        OSError: A file cannot be read.
    """
    files = dict(_files_in(folder))
    template = files.pop("index.html").content
    digest = hashlib.sha256()
    for path, content in sorted(
        [("index.html", template), *((path, file.content) for path, file in files.items())]
    ):
        digest.update(f"{path}\0{len(content)}\0".encode())
        digest.update(content)
    name = digest.hexdigest()[:16]
    index = _fill(template.decode(), f"/static/{name}", files).encode()
    return PageFiles(files, name, StaticFile.of(index, TYPES[".html"]))


def _files_in(folder: Path) -> Iterator[tuple[str, StaticFile]]:
    for path in sorted(folder.rglob("*")):
        media_type = TYPES.get(path.suffix)
        if media_type is not None and path.is_file():
            yield path.relative_to(folder).as_posix(), StaticFile.of(path.read_bytes(), media_type)


def _fill(template: str, base: str, files: dict[str, StaticFile]) -> str:
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
"""What the page may load and run: its own files, and no text that becomes markup or script."""

HEADERS: Final = {"Content-Security-Policy": POLICY}


def make_routes(files: PageFiles | None = None) -> list[Route]:
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
