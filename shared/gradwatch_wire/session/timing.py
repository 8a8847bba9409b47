"""Times of a session: when it repeats itself, how much is on its way, how long the end may take."""

from __future__ import annotations

from typing import Final

HELLO_EVERY_S: Final = 1.0
BEAT_EVERY_S: Final = 2.0

SILENCE_S: Final = 6.0
"""Without anything from the other side this long, heartbeats included, a connection is dead."""

ACK_TIMEOUT_S: Final = 5.0
"""Without any acknowledgement this long, the session is opened anew from what was acknowledged."""

MAX_IN_FLIGHT: Final = 256
"""Records sent and not acknowledged: what a crash of the aggregator makes us send again."""

MAX_BATCH: Final = 256
"""Messages that are sent, or received, in one round, before the other direction has its turn."""

ROUND_MS: Final = 20
"""The longest wait for an answer in one round. A round also sends what was produced meanwhile."""

CLOSE_S: Final = 2.0
"""From the moment a session closes: the longest that it waits for its last acknowledgement."""
