"""Links of a run to pages elsewhere, such as a tracker's: what one may be.

The client checks what it is given, the aggregator what it reads: anybody may have sent it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

from gradwatch_wire.limits import MAX_LINK_NAME, MAX_LINK_URL

Link: TypeAlias = tuple[str, str]
"""The name of a link and its URL."""

NAME: Final = "name"
URL: Final = "url"
"""Keys of the data of a `link` EVENT."""

_WEB: Final = re.compile(r"(?i:https?)://([!-\[\]-~]+)")
"""Printable ASCII; browsers read a backslash as a slash, so there is none."""


def checked_link(data: Mapping[str, object]) -> Link:
    """Return name and URL of a link.

    Raises:
        TypeError: If one of them is no string.
        ValueError: If one of them is not what a page may show. The message does not have the URL,
            in which a password may be.
    """
    name, url = _text(NAME, data.get(NAME)), _text(URL, data.get(URL))
    if not 1 <= len(name) <= MAX_LINK_NAME or not name.isprintable() or not name.strip():
        msg = f"name: 1 to {MAX_LINK_NAME} printable characters, got {name[: MAX_LINK_NAME + 1]!a}"
        raise ValueError(msg)
    if len(url) > MAX_LINK_URL:
        msg = f"url: at most {MAX_LINK_URL:,} characters, got {len(url):,}"
        raise ValueError(msg)
    web = _WEB.fullmatch(url)
    host = "" if web is None else re.split("[/?#]", web[1], maxsplit=1)[0]
    if not host:
        msg = "url: an address like https://host/path in ASCII without spaces, got another"
        raise ValueError(msg)
    if "@" in host:
        msg = "url: an address without user name and password, got one with them; leave them out"
        raise ValueError(msg)
    return name, url


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        msg = f"{key}: a string, got {type(value).__name__}"
        raise TypeError(msg)
    return value
