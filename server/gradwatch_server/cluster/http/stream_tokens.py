"""Tokens that open a stream on any node of a cluster."""

from __future__ import annotations

import hashlib
import time

from gradwatch_server.api.security.stream_tokens import StreamTokens
from gradwatch_server.cluster.ownership.clocks import APART_S
from gradwatch_server.keys import Keys


def shared_stream_tokens(keys: Keys | None) -> StreamTokens:
    """Return what makes tokens that every node with the same keys takes."""
    if keys is None:
        return StreamTokens()
    secret = hashlib.sha256(b"gradwatch stream tokens " + keys.tokens.write.encode()).digest()
    return StreamTokens(time.time, secret, grace_s=APART_S)
