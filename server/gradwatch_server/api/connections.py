"""HTTP connections: uvicorn's own, which show the app the transport that they write to."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

TRANSPORT: Final = "gradwatch.transport"
"""Key in `scope["state"]` of the transport of a request's connection."""


class Connection(H11Protocol):
    """A connection whose requests know their transport: only it can end at once."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        """Begin."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, TRANSPORT: transport}
