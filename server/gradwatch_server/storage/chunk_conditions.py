"""Which stored chunks may go: conditions in SQL that SQLite and PostgreSQL read alike.

Each is about a row `c` of `series_chunks`.
"""

from __future__ import annotations

from typing import Final

STOOD_FOR: Final = (
    "(SELECT entries FROM series_chunks AS above WHERE above.series = c.series"
    " AND above.level = c.level + 1 AND above.upto >= c.number ORDER BY above.number LIMIT 1) > 0"
)
"""Whether a chunk of the next level has what a chunk has."""

NOT_NEWEST: Final = (
    "number < (SELECT max(number) FROM series_chunks AS other WHERE other.series = c.series"
    " AND other.level = c.level)"
)
"""Whether there is a later chunk of its level."""
