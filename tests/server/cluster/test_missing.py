"""When a node looks for another NATS server."""

from __future__ import annotations

from random import Random

import pytest

from gradwatch_server.cluster.reach.missing import MAX_PAUSE_S, PAUSE_S, REST_S, SILENT_S, Missing
from gradwatch_server.nats.better_server import is_better

HERE = frozenset({"node c"})


def made() -> Missing:
    return Missing(Random(1))


def test_what_is_heard_no_more_is_missing() -> None:
    missing = made()
    missing.note(["node b", "node c"], 0.0)
    assert missing.find(["node b", "node c"], SILENT_S) == frozenset()
    missing.note(["node c"], 1.0)
    assert missing.find(["node b", "node c"], SILENT_S + 0.1) == {"node b"}


def test_what_never_was_heard_or_is_gone_is_not_missing() -> None:
    """A node of an earlier version does not beat; one whose lease is over is not expected."""
    missing = made()
    missing.note(["node b"], 0.0)
    assert missing.find(["node old"], 9.0) == frozenset()
    assert missing.find(["node old", "node b"], 9.0) == frozenset()  # forgotten meanwhile


def test_looks_in_vain_become_rare_until_nothing_is_missing() -> None:
    missing, now_s, pauses_s = made(), 0.0, []
    for _ in range(8):
        assert missing.is_to_look(HERE, now_s)
        missing.looked(now_s, has_moved=False)
        assert not missing.is_to_look(HERE, now_s)
        began_s = now_s
        while not missing.is_to_look(HERE, now_s):
            now_s += 0.01
        pauses_s.append(now_s - began_s)
    assert PAUSE_S / 2 <= pauses_s[0] <= PAUSE_S + 0.01
    assert MAX_PAUSE_S / 2 <= pauses_s[-1] <= MAX_PAUSE_S + 0.01

    assert not missing.is_to_look(frozenset(), now_s)
    missing.looked(now_s, has_moved=False)
    assert missing.is_to_look(HERE, now_s + PAUSE_S + 0.01)


def test_a_node_that_moved_stays_for_a_while() -> None:
    missing = made()
    missing.looked(0.0, has_moved=True)
    assert not missing.is_to_look(HERE, REST_S - 0.01)
    assert missing.is_to_look(HERE, 1.5 * REST_S + 0.01)


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        ("c", "bc", True),
        ("", "b", True),
        ("c", "c", False),  # gone, and nobody reaches it
        ("c", "b", False),  # the other side of the cut
        ("bc", "bc", False),  # back meanwhile
        ("c", "cd", False),  # more, but nothing that was missed for some time
        ("", "", False),  # no quorum: no leader answers anywhere
    ],
)
def test_only_a_server_that_reaches_all_and_more_is_better(
    here: str, there: str, *, expected: bool
) -> None:
    assert is_better(frozenset("b"), frozenset(here), frozenset(there)) is expected
