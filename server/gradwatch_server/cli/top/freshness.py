"""How old what is shown is, in words: an old `healthy` is the worst thing to show."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gradwatch_server.cli.async_client import HELLO, LOST, Heard
from gradwatch_server.cli.client import NoAnswerError

STALE_S: Final = 15.0
"""After so long without an answer it says so, also where nothing failed."""


class Freshness:
    """Told of each look and of the stream; says whether what is shown can be trusted."""

    def __init__(self) -> None:
        self._looked_s: float | None = None
        self._looked_at = ""
        self._error: Exception | None = None
        self._is_streaming = False
        self._boot: object = None

    def looked(self) -> None:
        """Note that the aggregator answered just now."""
        self._looked_s = time.monotonic()
        self._looked_at = f"{datetime.now(UTC):%H:%M:%S} UTC"
        self._error = None

    def failed(self, error: Exception) -> None:
        """Note that it did not, or that it answered with an error."""
        self._error = error

    def heard(self, heard: Heard) -> bool:
        """Note what the stream says; return whether the aggregator was started anew."""
        self._is_streaming = heard.event != LOST
        if heard.event != HELLO:
            return False
        return self._is_another(heard.data)

    def _is_another(self, hello: Mapping[str, Any]) -> bool:
        before, self._boot = self._boot, hello.get("boot")
        return before is not None and before != self._boot

    @property
    def is_old(self) -> bool:
        """Whether what is shown may be otherwise by now."""
        return self._error is not None or self._silent_s > STALE_S

    @property
    def _silent_s(self) -> float:
        return 0.0 if self._looked_s is None else time.monotonic() - self._looked_s

    def word(self) -> str:
        """Return it in words."""
        since = f" since {self._looked_at}" if self._looked_at else ""
        if isinstance(self._error, NoAnswerError):
            return f"aggregator gone{since}, reconnecting"
        if self._error is not None:
            return f"stale{since}: {self._error}"
        if self.is_old:
            return f"stale{since}"
        if self._looked_s is None:
            return "asking"
        how = "live" if self._is_streaming else "every few seconds, reconnecting the stream"
        return f"{how} · {self._looked_at}"
