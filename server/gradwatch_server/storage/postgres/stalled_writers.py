"""Ends transactions that keep others waiting while their client says nothing.

PostgreSQL's `idle_in_transaction_session_timeout` holds only between statements. A client that
stands still, or is cut off, within a pipeline of them or in the middle of a long one would keep its
locks for as long as that lasts: its server has begun to work, and no time limit ends its wait for
the rest. Whoever was ended by mistake, as it was about to go on, gets an error and writes again.
"""

from __future__ import annotations

from typing import Final

_END: Final = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE usename = session_user AND datname = current_database() AND wait_event = 'ClientRead'
    AND greatest(query_start, state_change) < clock_timestamp() - interval '{} milliseconds'
    AND pid IN (
        SELECT unnest(pg_blocking_pids(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event IN ('transactionid', 'tuple')
    )
"""
# Only who keeps others from rows: a slow link may take its time, and a backup has only tables.


def end_stalled(resting_ms: int) -> bytes:
    """Return the statement that ends who rested for longer, a row for each."""
    return _END.format(resting_ms).encode()
