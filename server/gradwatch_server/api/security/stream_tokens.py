"""Tokens that open an alert stream, for browsers: an `EventSource` cannot send a header."""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Callable
from typing import Final

STREAM_TOKEN_S: Final = 60
"""Seconds for which a token is valid."""


class StreamTokens:
    """Issues and checks them. They are signed, not stored, and good for this process only."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._secret = os.urandom(32)

    def issue(self) -> str:
        """Return a token that is good for `STREAM_TOKEN_S`."""
        expiry = f"{self._clock_s() + STREAM_TOKEN_S:.3f}"
        return f"{expiry}-{self._sign(expiry)}"

    def is_valid(self, token: str) -> bool:
        """Tell whether a token is ours and not too old."""
        expiry, _, signature = token.rpartition("-")
        # The signature first: only then is the rest ours.
        genuine = hmac.compare_digest(self._sign(expiry).encode(), signature.encode())
        return genuine and self._clock_s() < float(expiry)

    def _sign(self, text: str) -> str:
        message = text.encode("utf-8", "surrogatepass")
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()
