"""What manifests take has room of its own: the oldest ones of a session go beyond it (S23)."""

from __future__ import annotations

from typing import Any

import pytest

from gradwatch_server.budgets import Budgets
from gradwatch_server.core.entries import BudgetsSet, ManifestsDropped
from gradwatch_server.core.session import Session
from tests.server.core.test_saved_state import restored, same, story_of
from tests.support.core import Cluster

NAMES = [f"layer {i}" for i in range(1_000)]


def limited(job: Any, **budgets: int) -> Any:
    """Let sessions and attempts hold so much from now on."""
    job.put(BudgetsSet(Budgets().logged().model_dump() | budgets))
    return job


def taken(job: Any) -> int:
    """Return what the manifests of all ranks take, each layout once."""
    known = [own for s in job.attempt.sessions.values() for own in s.manifests.values()]
    layouts = {id(own.layout): own.layout.num_bytes for own in known}
    return int(sum(layouts.values()) + sum(own.own_bytes for own in known))


def test_the_oldest_manifests_of_a_session_go() -> None:
    """Records of them fit none any more, and are counted; those of the newest are read."""
    job = limited(Cluster(names=NAMES), manifests_bytes_per_session=100_000).start()
    for number in range(2, 30):
        job.declare(0, NAMES[number:], manifest_id=number)
    (session,) = job.attempt.sessions.values()
    kept = list(session.manifests)
    job.stats(0, 0, [1.0] * 999, manifest_id=1)
    job.stats(0, 1, [1.0] * 971, manifest_id=29)

    assert 5 < len(kept) < 15
    assert kept == list(range(30 - len(kept), 30))
    assert session.manifests_bytes <= 100_000
    assert job.attempt.manifests.num_dropped == {"manifests_bytes_per_session": 29 - len(kept)}
    assert job.closed == [1]
    assert job.health()["records"]["unresolved"] == 1


def test_what_is_counted_is_what_is_there() -> None:
    job = limited(Cluster(world=3, names=NAMES), manifests_bytes_per_session=60_000).start()
    assert job.attempt.manifests.num_bytes == taken(job) < 3 * 8_000
    for number in range(40):
        rank, many = number % 3, 500 + number // 2
        shards = {"shards": (f"{rank}/3",) * many} if number % 4 else {}
        job.declare(rank, NAMES[:many], manifest_id=1 + number % 7, **shards)
        assert job.attempt.manifests.num_bytes == taken(job)
        own = job.attempt.sessions[rank]
        assert own.manifests_bytes == sum(one.num_bytes for one in own.manifests.values())
    again = restored(job.state).runs["gpt"].current
    assert again.manifests.num_bytes == job.attempt.manifests.num_bytes
    assert again.layers.num_bytes == job.attempt.layers.num_bytes

    first = job.attempt
    for rank in range(3):
        job.bye(rank)
    job.open(0, job="later")
    assert first.retired
    assert first.manifests.num_bytes == 0


@pytest.mark.slow
def test_a_restart_anywhere_changes_nothing() -> None:
    job = limited(Cluster(names=NAMES[:50]), manifests_bytes_per_session=6_000).start()
    for number in range(2, 12):
        job.declare(0, NAMES[: 50 + number], manifest_id=number, frozen=(NAMES[0],))
        job.stats(0, number, [1.0] * (48 + number), manifest_id=number - 2)
    live = Cluster().state
    others: list[Any] = []
    for entry in job.entries:
        told = live.apply(entry)
        others = [other for other in others if same(other.apply(entry), told)]
        others.append(restored(live))

    assert job.attempt.manifests.num_dropped.total() > 3
    assert len(others) == len(job.entries)
    assert all(story_of(other) == story_of(live) for other in others)


def test_an_entry_drops_those_of_one_session() -> None:
    job = Cluster(world=2, names=NAMES).start()
    for rank in range(2):
        job.declare(rank, NAMES[:500], manifest_id=2)
    first, second = (job.attempt.sessions[rank] for rank in range(2))
    job.put(ManifestsDropped(first.id, first.manifests_bytes - 1))
    assert (list(first.manifests), list(second.manifests)) == ([2], [1, 2])
    job.put(ManifestsDropped(first.id, 0))
    job.put(ManifestsDropped(bytes(16), 0))

    assert (list(first.manifests), list(second.manifests)) == ([], [1, 2])
    assert job.attempt.manifests.num_dropped == {"manifests_bytes": 2}
    assert job.attempt.manifests.num_bytes == taken(job)


def test_names_and_groups_of_an_attempt_are_bounded() -> None:
    job = limited(Cluster(names=NAMES[:100]), layers_bytes_per_attempt=29_000).start()
    job.declare(0, ["x" * 512 + str(i) for i in range(50)], manifest_id=2)
    groups = {f"g{i}": tuple(range(100)) for i in range(9)}
    job.declare(0, NAMES[:100], manifest_id=3, groups=groups)
    job.stats(0, 0, [1.0] * 100, manifest_id=3)

    assert len(job.attempt.layers.names) == 100
    assert list(job.attempt.layers.groups()) == ["g0", "g1"]
    assert job.attempt.layers.num_bytes <= 29_000
    assert job.health()["records"]["unresolved"] == 1
    assert job.closed == [0]


def test_a_manifest_costs_the_same_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0
    size = Session.declare.__globals__["DeclaredManifest"].size

    def counted(own: Any) -> Any:
        nonlocal looked_at
        looked_at += 1
        return size.fget(own)

    monkeypatch.setattr("gradwatch_server.core.session.DeclaredManifest.size", property(counted))
    job = Cluster(names=("a",)).start()
    for number in range(2, 200):
        job.declare(0, manifest_id=number)

    assert looked_at <= 200
