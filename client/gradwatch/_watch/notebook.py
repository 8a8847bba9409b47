"""A watch as a notebook shows it: a small table of HTML, in which every value is escaped text."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def html_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return a table of names and values, without script, style or link.

    Args:
        title: Stands above it.
        rows: What stands beside one another. Of texts with control characters, or those that turn
            the direction of others, the escaped form is shown.
    """
    shown = "".join(
        f'<tr><th scope="row">{_text(name)}</th><td>{_text(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table><caption>{_text(title)}</caption><tbody>{shown}</tbody></table>"


def _text(value: object) -> str:
    text = str(value)
    return escape(text if text.isprintable() else text.encode("unicode_escape").decode())
