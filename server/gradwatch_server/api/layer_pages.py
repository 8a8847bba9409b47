"""Pages of layers: by a text in their names, so many at once, from a place on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query

_Text = Annotated[str | None, Query(max_length=500, description="Text in the name.")]
_Limit = Annotated[
    int | None, Query(ge=1, le=100_000, description="Number of layers; all by default.")
]
_From = Annotated[int, Query(ge=0, le=1 << 20, description="`next` of the page before.")]


@dataclass(frozen=True, slots=True)
class LayerPage:
    """Selection of layers.

    Args:
        text: What the name has in it, None for all.
    """

    text: str | None
    limit: int | None
    cursor: int

    def of(self, places: Sequence[int], names: Sequence[str]) -> tuple[list[int], dict[str, Any]]:
        """Return the places on the page, and what the answer says of where it ends.

        Args:
            places: Places of all layers, rising.
        """
        wanted = [
            at for at in places if at >= self.cursor and (not self.text or self.text in names[at])
        ]
        page = wanted if self.limit is None else wanted[: self.limit]
        return page, {"next": wanted[len(page)] if len(page) < len(wanted) else None}


async def _page(q: _Text = None, limit: _Limit = None, cursor: _From = 0) -> LayerPage:
    return LayerPage(q, limit, cursor)


Page = Annotated[LayerPage, Depends(_page)]
"""The type of the parameter by which a route gets it."""
