"""Plain data of this version or a later one, which may have more to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def known_fields(kind: type[Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return of plain data what a dataclass has a field for.

    Versions are mixed while a cluster is upgraded, and then an older node reads what a newer one
    wrote.
    """
    return {own.name: plain[own.name] for own in fields(kind) if own.name in plain}
