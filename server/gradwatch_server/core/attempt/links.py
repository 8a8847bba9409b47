"""Links of one attempt to pages elsewhere, such as that of its run in an experiment tracker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from gradwatch_wire.limits import MAX_LINKS
from gradwatch_wire.links import NAME, URL, Link, checked_link


class Links:
    """What ranks told, bounded and checked: of a name the newest URL.

    Args:
        links: Those that were saved.
    """

    def __init__(self, links: Iterable[Link] = ()) -> None:
        self._urls: dict[str, str] = {}
        for name, url in links:
            self.add({NAME: name, URL: url})

    def add(self, data: Mapping[str, object]) -> None:
        """Take in the data of an EVENT; what is no link, and a name too many, is left out."""
        with contextlib.suppress(TypeError, ValueError):
            name, url = checked_link(data)
            if name in self._urls or len(self._urls) < MAX_LINKS:
                self._urls[name] = url

    def items(self) -> tuple[Link, ...]:
        """Return names and URLs, in the order in which the names came."""
        return tuple(self._urls.items())
