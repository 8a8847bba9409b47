"""Which versions of gradwatch may be nodes of one cluster at a time: neighbouring minor ones."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gradwatch_server.cluster.ownership.node_record import NodeRecord
from gradwatch_server.errors import GradwatchError


def check_neighbours(version: str, nodes: Iterable[NodeRecord]) -> None:
    """See that a node of a version may join those that have a lease.

    What a version writes for other nodes is read by the minor one before it, and by the one after
    it. Nothing is promised beyond that.

    Raises:
        GradwatchError: If the version of one of them is further away.
    """
    strangers = [own for own in nodes if not _are_neighbours(version, own.version)]
    if not strangers:
        return
    first = strangers[0]
    msg = (
        f"the node {first.id} runs gradwatch {first.version[:40]!a}, and this one is {version}: "
        "the nodes of a cluster are of one minor version or of two that follow each other; "
        "upgrade through those in between, or stop all nodes first"
    )
    raise GradwatchError(msg)


def _are_neighbours(one: str, other: str) -> bool:
    own, theirs = _major_and_minor(one), _major_and_minor(other)
    if own is None or theirs is None:
        return one == other
    return own[0] == theirs[0] and abs(own[1] - theirs[1]) <= 1


def _major_and_minor(version: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))
