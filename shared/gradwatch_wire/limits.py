"""Bounds on everything that crosses the wire.

Both sides keep them: the client refuses to build what the aggregator would refuse to read.
The reasons are in `docs/protocol.md`.
"""

SESSION_BYTES = 16
BOOT_ID_BYTES = 16

MAX_RECORD_BYTES = 2 << 20
"""One message. The aggregator tells its own limit in WELCOME."""

MAX_IN_FLIGHT_BYTES = 8 << 20
"""Records that a client sends before they are acknowledged, where WELCOME does not say."""

RECORD_OVERHEAD_BYTES = 560
"""Bytes of a record beside its body, in the window of a session: the head of its message, and what
it takes in the aggregator's memory."""

MAX_LAYERS = 32_768
MAX_PARTS = 64
"""Records of one step, one per optimizer."""
MAX_COLUMNS = 32
MAX_SCALARS = 64
MAX_LABELS = 32
MAX_GROUPS = 64
MAX_BLOCKS = 4_096
MAX_MODULES = 4_096
"""Modules whose outputs one client measures."""

MAX_HISTORY = 1_024
"""Steps of which one record brings the numbers of the run."""

MAX_MESHES = 8
"""Dimensions in which a job is parallel."""

MAX_BATCH_BYTES = 256
"""Identity of the batch of one step."""

MAX_STACK_BYTES = 8_192
"""Python stack in an EVENT."""

MAX_MANIFESTS = 64
"""Sets of layers that a client remembers. A model that skips layers at random has ever new ones."""

MAX_NAME_BYTES = 512
"""One layer, block, group, column, host or run name in UTF-8."""

MAX_TEXT_BYTES = 4_096
"""Free text: a reason, a version string, a token."""

MAX_CONTAINERS = 160
"""Arrays and maps in one record. It caps what a small hostile record can grow to in memory:
one empty map costs 1 byte on the wire and 64 in memory."""

MAX_RANKS = 65_536
MAX_STEP = (1 << 53) - 1
"""The largest integer that every JSON reader keeps exactly."""

MAX_SEQ = (1 << 63) - 1
"""SQLite's largest integer."""

MAX_ALERT_DEPTH = 6
"""Nesting of the JSON-like map in an ALERT."""
