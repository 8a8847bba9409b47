"""The page's files, read once: their bytes, their types, and the digest that names this version."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
    """A file as it is sent.

    Args:
        content: Its bytes.
        media_type: Its type.
    """

    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class PageFiles:
    """All files of the page.

    Args:
        files: Path below the folder to the file.
        digest: Names this version of all of them: it changes when one of them does.
        index: The page itself, with the paths of this version in it.
    """

    files: dict[str, StaticFile]
    digest: str
    index: bytes

    @property
    def has_lines(self) -> bool:
        """Whether what draws lines is there."""
        return LINES in self.files


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
    for path, file in sorted({**files, "index.html": StaticFile(template, "")}.items()):
        digest.update(f"{path}\0{len(file.content)}\0".encode())
        digest.update(file.content)
    name = digest.hexdigest()[:16]
    return PageFiles(files, name, _fill(template.decode(), f"/static/{name}", files).encode())


def _files_in(folder: Path) -> Iterator[tuple[str, StaticFile]]:
    for path in sorted(folder.rglob("*")):
        media_type = TYPES.get(path.suffix)
        if media_type is not None and path.is_file():
            yield path.relative_to(folder).as_posix(), StaticFile(path.read_bytes(), media_type)


def _fill(template: str, base: str, files: dict[str, StaticFile]) -> str:
    """Put the paths of this version into the page.

    Every module is named at once, so that none waits for another one to name it.
    """
    names = sorted(files)
    links = [f'<link rel="stylesheet" href="{base}/{n}">' for n in names if n.endswith(".css")]
    links += [f'<link rel="modulepreload" href="{base}/{n}">' for n in names if n.endswith(".js")]
    lines = html.escape(f"{base}/{LINES}") if LINES in files else ""
    return (
        template.replace("<!-- links -->", "\n    ".join(links))
        .replace("{static}", base)
        .replace("{lines}", lines)
    )
