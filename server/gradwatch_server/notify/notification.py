"""Notification that a notifier sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from gradwatch_server.notify.plan import NotificationBatch
from gradwatch_server.storage.deliveries import DeliveryState
from gradwatch_wire.run_page import run_page

AlertBody: TypeAlias = Mapping[str, Any]
"""An alert as it is stored and as `GET /alerts` shows it."""

Read: TypeAlias = Callable[[DeliveryState], AlertBody | None]
"""Returns the alert as it was at an entry's event, None if that is not kept any more."""


@dataclass(frozen=True, slots=True)
class Notification:
    """One message.

    Args:
        read: Reads one of them; as many as are named, for each is a read of the store.
        page_url: Where the page is, None if that is not known.
    """

    batch: NotificationBatch
    read: Read
    page_url: str | None
    now_s: float

    def link(self, entry: DeliveryState) -> str | None:
        """Return the address of an alert's page."""
        if self.page_url is None:
            return None
        return run_page(self.page_url, entry.run, alert=entry.alert_id)
