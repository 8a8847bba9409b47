"""A link to a page elsewhere, which waits for no device, on its way to an EVENT."""

from __future__ import annotations

import time

from gradwatch_wire import Event, Manifest, Record
from gradwatch_wire.links import NAME, URL, Link
from gradwatch_wire.names import EventName


class PendingLink:
    """The EVENT of a link.

    Args:
        step: The training step that is under way.
        link: Name and URL.
    """

    step = None
    is_lost = False

    def __init__(self, step: int, link: Link) -> None:
        name, url = link
        self.time_ns = time.time_ns()
        self.manifests: list[Manifest] = []
        self._event = Event(name=EventName.LINK, step=step, data={NAME: name, URL: url})

    def ready(self) -> bool:
        """Tell that nothing has to be waited for."""
        return True

    def records(self) -> list[Record]:
        """Return the manifests that have to come first, and the EVENT."""
        return [*self.manifests, self._event]
