"""Which nodes without a lease are waited for."""

from __future__ import annotations

import pytest

from gradwatch_server.cluster.ownership import absences
from gradwatch_server.cluster.ownership.absences import RETURN_S, Absences


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("lease_s", "waits_s"), [(1.0, RETURN_S), (10.0, 10.0)])
def test_nodes_may_be_as_long_in_coming_back_as_an_election_makes_them(
    monkeypatch: pytest.MonkeyPatch, lease_s: float, waits_s: float
) -> None:
    """That is the same however short leases are."""
    clock = Clock()
    monkeypatch.setattr(absences, "time", clock)
    own = Absences(lease_s)
    assert own.awaited({"b"}, 0.0) == {"b"}
    clock.now_s += waits_s - 0.1
    assert own.awaited({"b"}, waits_s - 0.1) == {"b"}
    clock.now_s += 0.2
    assert own.awaited({"b"}, waits_s - 0.1) == frozenset(), "however unsteady"


def test_who_is_gone_while_all_else_goes_well_is_not_waited_for() -> None:
    assert Absences(3.0).awaited({"b"}, RETURN_S) == frozenset()
