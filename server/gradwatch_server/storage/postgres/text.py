"""Text on its way into PostgreSQL and back: it has no NUL there, and names of runs may have one.

A NUL becomes U+2400, the sign for it, and a 0; that sign itself is doubled.
"""

from __future__ import annotations

from typing import Final

from psycopg.abc import AdaptContext, Buffer
from psycopg.types.string import StrDumperUnknown, TextBinaryLoader

_SIGN: Final = "\u2400"


class _TextDumper(StrDumperUnknown):
    def dump(self, obj: str) -> Buffer | None:
        if "\0" in obj or _SIGN in obj:
            obj = obj.replace(_SIGN, _SIGN * 2).replace("\0", f"{_SIGN}0")
        return super().dump(obj)


class _TextLoader(TextBinaryLoader):
    def load(self, data: Buffer) -> bytes | str:
        text = super().load(data)
        if isinstance(text, str) and _SIGN in text:
            return _SIGN.join(part.replace(f"{_SIGN}0", "\0") for part in text.split(_SIGN * 2))
        return text


def register_text(context: AdaptContext) -> None:
    """Let all text on a connection be encoded so; results have to be binary."""
    context.adapters.register_dumper(str, _TextDumper)
    context.adapters.register_loader("text", _TextLoader)
