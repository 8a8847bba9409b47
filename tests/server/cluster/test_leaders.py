"""When a leader is asked to let another server lead."""

from __future__ import annotations

from gradwatch_server.cluster.reach.leaders import AGAIN_S, TURN_S, Handovers
from gradwatch_server.nats.reach import Leader

ALL = frozenset({"n0", "n1", "n2"})


def leads(name: str, *silent: str) -> dict[str, Leader]:
    return {"LOG": Leader(name, frozenset(silent))}


def test_a_leader_that_does_not_hear_a_live_server_is_asked() -> None:
    """Again after a while if it goes on leading: it may have chosen badly."""
    handovers, deaf = Handovers(), leads("n0", "n1")
    assert handovers.due(deaf, ALL, 0, 0.0) == {"LOG": {"n1"}}
    assert handovers.due(deaf, ALL, 0, 0.5) == {"LOG": {"n1"}}  # it could not be asked
    handovers.note_asked("LOG", "n0", ["n1"], 1.0)
    assert handovers.due(deaf, ALL, 0, 0.9 + AGAIN_S) == {}
    assert handovers.due(deaf, ALL, 0, 1.0 + AGAIN_S) == {"LOG": {"n1"}}
    handovers.note_asked("LOG", "n0", ["n1"], 1.0 + AGAIN_S)
    assert handovers.due(leads("n2"), ALL, 0, 5.0) == {}
    assert handovers.due(deaf, ALL, 0, 5.1) == {"LOG": {"n1"}}  # cut off anew


def test_a_server_that_is_gone_is_no_reason() -> None:
    assert Handovers().due(leads("n0", "n1"), ALL - {"n1"}, 0, 0.0) == {}
    assert Handovers().due(leads("n0"), ALL, 0, 0.0) == {}


def test_nodes_ask_one_after_the_other() -> None:
    handovers, deaf = Handovers(), leads("n0", "n1")
    assert handovers.due(deaf, ALL, 1, 0.0) == {}
    assert handovers.due(deaf, ALL, 1, TURN_S) == {"LOG": {"n1"}}


def test_whom_another_node_asks_is_left_alone_for_a_while() -> None:
    handovers = Handovers()
    handovers.note_asked("LOG", "n0", ["n1"], 0.0)
    assert handovers.due(leads("n0", "n1"), ALL, 0, AGAIN_S - 0.1) == {}
    assert handovers.due(leads("n0", "n1"), ALL, 0, AGAIN_S) == {"LOG": {"n1"}}


def test_a_server_that_two_leaders_do_not_hear_is_left_alone() -> None:
    """Nobody would be a better leader; what they hear they keep."""
    handovers = Handovers()
    assert handovers.due(leads("n0", "n1"), ALL, 0, 0.0)
    handovers.note_asked("LOG", "n0", ["n1"], 0.0)
    assert handovers.due(leads("n2", "n1"), ALL, 0, 9.0) == {}
    assert handovers.due(leads("n0", "n1"), ALL, 0, 99.0) == {}


def test_the_other_side_of_a_cut_is_no_better() -> None:
    """Neither of the two hears the other; the third hears both."""
    handovers = Handovers()
    assert handovers.due(leads("n0", "n1"), ALL, 0, 0.0)
    assert handovers.due(leads("n1", "n0"), ALL, 0, 1.0) == {"LOG": {"n0"}}
