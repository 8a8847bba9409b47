"""Clocks of nodes that are apart are told of, and those that agree are not."""

from __future__ import annotations

import logging
from itertools import count

import pytest

from gradwatch_server.cluster.ownership.clocks import Clocks
from gradwatch_server.cluster.ownership.lease import Lease
from gradwatch_server.cluster.ownership.node_record import NodeRecord
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.key_value import KeyValue

HOUR_NS = 3_600 * 10**9
_NUMBERS = count(1)


def at(now_ns: int) -> Clocks:
    return Clocks("a", lambda: now_ns)


@pytest.mark.parametrize(
    ("told_s", "says"),
    [
        (3_600.0, "the clock of node b is 3600 s ahead of that of this one"),
        (-61.0, "the clock of node b is 61 s behind that of this one"),
        (59.0, None),
        (-59.0, None),
    ],
)
def test_what_is_apart_is_told_once(
    told_s: float, says: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    clocks, told_ns = at(HOUR_NS), HOUR_NS + round(told_s * 1e9)
    with caplog.at_level(logging.WARNING):
        for revision in range(1, 5):
            clocks.note("b", revision, told_ns)
    if says is None:
        assert (clocks.fault, caplog.messages) == (None, [])
    else:
        assert clocks.fault is not None
        assert says in clocks.fault
        assert caplog.messages == [clocks.fault]
    assert clocks.most_apart_s == abs(told_s)


def test_what_was_written_before_it_was_looked_says_nothing() -> None:
    """A node that died a while ago is not one whose clock is behind."""
    clocks = at(HOUR_NS)
    for _ in range(3):
        clocks.note("b", 7, 0)
    assert clocks.fault is None


def test_its_own_says_nothing_and_who_goes_is_forgotten() -> None:
    clocks = at(HOUR_NS)
    for revision in (1, 2):
        for node in ("a", "b", "c"):
            clocks.note(node, revision, 0)
    assert clocks.fault is not None
    assert "and 1 more" in clocks.fault
    clocks.keep({"a"})
    assert clocks.fault is None


def test_nodes_tell_each_other_the_time_with_their_leases(nats_connection: Connection) -> None:
    bucket = KeyValue(nats_connection, f"clocks{next(_NUMBERS)}", ttl_s=60.0)
    own, other = Clocks("a", lambda: HOUR_NS), Clocks("b", lambda: 2 * HOUR_NS)
    leases = [
        Lease(NodeRecord(clocks_of, "1", "", ""), bucket, 1e-9, clocks)  # each time it is time
        for clocks_of, clocks in (("a", own), ("b", other), ("c", None))
    ]
    for _ in range(2):
        for lease in leases:
            lease.renew()
        for lease in leases:
            assert lease.read_all().keys() == {"a", "b", "c"}
    assert "node b is 3600 s ahead" in (own.fault or "")
    assert "node a is 3600 s behind" in (other.fault or "")
