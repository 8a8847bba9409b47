"""An owner of partition 0 that writes all the time, to be stopped in the middle of it.

Run as `python ledger_writer.py URL CLUSTER_ID PARTITIONS HOW`: `events` stores many alert events,
each batch again until it succeeds; `state` saves state without end.
"""

from __future__ import annotations

import sys
from typing import Final

from gradwatch_server.clock import Clock
from gradwatch_server.storage.ledger import PartitionLedger
from gradwatch_server.storage.postgres.ledger import PostgresLedger
from gradwatch_server.storage.store import NewAlertEvent, StorageError, StorageFault

BATCHES: Final = 400
BATCH: Final = 100


def store_events(own: PartitionLedger) -> None:
    """Store all events, each batch until it succeeds."""
    for number in range(BATCHES):
        events = [
            NewAlertEvent(f"{number}-{place}", "firing", "gpt", "{}") for place in range(BATCH)
        ]
        while not _succeeds(own, events):
            pass


def _succeeds(own: PartitionLedger, events: list[NewAlertEvent]) -> bool:
    try:
        own.alert_events.add(events)
    except StorageError as error:
        if error.fault is StorageFault.GONE:
            raise
        return False
    return True


def save_state(own: PartitionLedger) -> None:
    """Save state without end."""
    while True:
        own.state.save({f"part {number}": b"x" * 3_000 for number in range(300)}, [])


def main(url: str, cluster_id: str, partitions: str, how: str) -> None:
    """Take the partition and write it."""
    ledger = PostgresLedger(url, cluster_id, int(partitions), Clock())
    own = ledger.take(0, 1)
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    {"events": store_events, "state": save_state}[how](own)
    ledger.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
