"""Names and numbers in messages: how they are written, and how long they may be."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from gradwatch_server.core.printable import printable

MAX_SHOWN: Final = 120
"""Characters of a name in a message; the whole one is beside it, in a key of its own."""

MAX_CAUSE: Final = 80
"""Characters of a cause."""

_CUT: Final = "…"


@lru_cache(maxsize=1024)
def shown(name: str) -> str:
    """Return a name as messages have it: harmless for a terminal, a long one without its middle."""
    if len(name) > MAX_SHOWN:  # what is between these is cut in any case
        name = name[:MAX_SHOWN] + name[-MAX_SHOWN:]
    return cut(printable(name), MAX_SHOWN)


def cut(text: str, limit: int) -> str:
    """Return a text of at most so many characters, of which there is at least one."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return text[: limit - 1 - tail] + _CUT + text[len(text) - tail :]


def cut_bytes(text: str, limit: int) -> str:
    """Return a text of at most so many bytes in UTF-8, 16 or more."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    half = (limit - len(_CUT.encode())) // 2
    head, tail = encoded[:half], encoded[len(encoded) - half :]
    return head.decode(errors="ignore") + _CUT + tail.decode(errors="ignore")
