"""Alert events as they are read from a store: what is damaged is left out, and told once."""

from __future__ import annotations

import json
import logging

from gradwatch_server.storage.store import AlertEvent

logger = logging.getLogger(__name__)


class EventDecoder:
    """Decodes the events of one store, for any thread."""

    def __init__(self) -> None:
        self._told = False  # that an event is damaged

    def decode(
        self, cursor: int, run: str, body: str, *, is_good: bool = True
    ) -> AlertEvent | None:
        """Return an event, None if it is not what was written.

        Args:
            cursor: Its cursor.
            run: Name of its run.
            body: The alert, JSON.
            is_good: Whether its checksum says that all of it is what was written.
        """
        try:
            alert = json.loads(body)
            if not is_good:
                why = "its checksum is another one"
            elif not isinstance(alert, dict):
                why = "it is no alert"
            else:
                return AlertEvent(cursor, run, alert)
        except (ValueError, TypeError) as error:
            why = str(error)
        if not self._told:
            logger.warning("alert event %d is left out (told once): %s", cursor, why)
        self._told = True
        return None
