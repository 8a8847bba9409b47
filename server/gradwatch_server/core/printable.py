"""Texts from the wire, made harmless for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return *text* with what a terminal would act on escaped: names come from the wire."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
