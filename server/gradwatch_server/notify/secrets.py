"""URLs with secrets in them: where they come from, and how they are kept out of texts."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, unquote_plus

from gradwatch_server.errors import GradwatchError

HIDDEN: Final = "***"

MAX_FILE_BYTES: Final = 16_384

_PARTS: Final = re.compile(r"[/:@?&=,#;+]+")

_ANY_URL: Final = re.compile(r"\S+://\S+")
"""A URL as a library writes it, with the first and the last letter of each secret in it."""

_MIN_SECRET: Final = 3
"""Characters from which on a part of a URL is taken for something that can be a secret."""


def url_from_environment(name: str) -> str:
    """Return the URL in an environment variable.

    Raises:
        GradwatchError: If there is none.
    """
    url = os.environ.get(name, "").strip()
    if not url:
        msg = f"the environment variable {name} is not set, or is empty"
        raise GradwatchError(msg)
    return url


def url_from_file(path: Path) -> str:
    """Return the URL in a file, which is its one line.

    Raises:
        GradwatchError: If it cannot be read, or has no line or several.
    """
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_FILE_BYTES).decode().split()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        msg = f"cannot read {path}: {reason}"
        raise GradwatchError(msg) from None  # what was decoded so far is in the error
    if len(lines) != 1:
        msg = f"{path} should have one line, the URL, and has {len(lines)} words"
        raise GradwatchError(msg)
    return lines[0]


def redacted(text: str, url: str) -> str:
    """Return a text without anything of a URL, as written, decoded or shortened."""
    _, _, rest = url.partition("://")
    written = _PARTS.split(rest)
    parts = {text for part in written for text in (part, unquote(part), unquote_plus(part))}
    hidden = {url, rest, *(text for text in parts if len(text) >= _MIN_SECRET)}
    for form in sorted(hidden, key=len, reverse=True):
        if form:
            text = text.replace(form, HIDDEN)
    return _ANY_URL.sub(HIDDEN, text)
