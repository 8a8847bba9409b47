"""What is fixed when a cluster is created, and what no node may disagree with."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Final

from gradwatch_server.errors import GradwatchError
from gradwatch_server.nats.key_value import KeyValue

KEY: Final = "cluster"
FORMAT: Final = 1
"""Of all that nodes write for each other; another one is not read."""

PARTITIONS: Final = 64


@dataclass(frozen=True, slots=True)
class Creation:
    """What a cluster is.

    Args:
        id: Tells it from others, also in the ledger.
        partitions: How many there are.
        format: Of what nodes write for each other.
    """

    id: str
    partitions: int = PARTITIONS
    format: int = FORMAT


def create_or_read(config: KeyValue, partitions: int | None = None) -> Creation:
    """Return what was fixed; fix it now if this is the first node.

    Args:
        config: Where it is kept.
        partitions: How many there are to be; None for as many as there are, `PARTITIONS` at first.

    Raises:
        GradwatchError: If NATS does not answer, it is of a version that this one cannot read, or
            it has another number of partitions.
    """
    entry = config.get(KEY)
    if entry is None:
        created = Creation(os.urandom(8).hex(), partitions or PARTITIONS)
        if config.create(KEY, json.dumps(asdict(created)).encode()) is not None:
            return created
        entry = config.get(KEY)  # another node was first
    try:
        plain = json.loads((entry.value if entry is not None else None) or b"{}")
        found = Creation(str(plain["id"]), int(plain["partitions"]), int(plain["format"]))
    except (ValueError, TypeError, KeyError) as error:
        msg = f"the key {KEY} of the bucket of settings is no cluster's: {error!r}"
        raise GradwatchError(msg) from error
    if found.format != FORMAT:
        msg = (
            f"the cluster was created with format {found.format}, and this version knows {FORMAT}: "
            "run the version that its other nodes run"
        )
        raise GradwatchError(msg)
    if partitions not in (None, found.partitions):
        msg = (
            f"setting 'cluster_partitions': the cluster was created with {found.partitions}, which "
            f"stays so, got {partitions}; leave it out"
        )
        raise GradwatchError(msg)
    return found
