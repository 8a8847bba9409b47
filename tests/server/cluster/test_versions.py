"""Which versions may be nodes of one cluster at a time."""

from __future__ import annotations

import pytest

from gradwatch_server.cluster.ownership.node_record import NodeRecord
from gradwatch_server.cluster.ownership.versions import check_neighbours
from gradwatch_server.errors import GradwatchError


def node(version: str) -> NodeRecord:
    """Return a node of a version."""
    return NodeRecord(f"n-{version[:5]}", version, "http://h", "tcp://i")


@pytest.mark.parametrize("other", ["1.4.0", "1.4.9", "1.3.2", "1.5.0", "1.5.0.dev3+g12", "1.4rc1"])
def test_a_neighbouring_minor_version_is_taken(other: str) -> None:
    check_neighbours("1.4.1", [node("1.4.1"), node(other)])


@pytest.mark.parametrize("other", ["1.2.9", "1.6.0", "2.4.1", "0.4.1", "", "next", "1", "x" * 999])
def test_any_other_is_named_with_what_to_do(other: str) -> None:
    """In one line that is not too long."""
    with pytest.raises(GradwatchError) as caught:
        check_neighbours("1.4.1", [node("1.5.0"), node(other)])

    line = str(caught.value)
    assert f"the node n-{other[:5]} runs gradwatch '{other[:40]}', and this one is 1.4.1" in line
    assert "stop all nodes first" in line
    assert len(line) < 300


def test_versions_that_cannot_be_told_have_to_be_the_same() -> None:
    """As of a build of somebody's own."""
    check_neighbours("mine", [node("mine")])
    with pytest.raises(GradwatchError):
        check_neighbours("mine", [node("1.4.1")])
