"""Memory of manifests is bounded by run: the oldest go beyond it (S23)."""

from __future__ import annotations

from typing import Any

import pytest

from gradwatch_server.budgets import Budgets
from gradwatch_server.core.entries import ManifestsDropped
from tests.server.core.test_saved_state import restart, restored
from tests.support.core import Cluster

BYTES = 16 << 20

NAMES = [f"layer {i}" for i in range(1_000)]


def limited(job: Any, **budgets: int) -> Any:
    """Let sessions and attempts hold so much from now on."""
    job.budgets(**Budgets().logged().model_dump() | budgets)
    return job


def taken(job: Any) -> int:
    """Return what the manifests of all ranks take, each layout once."""
    known = [manifest for s in job.attempt.sessions.values() for manifest in s.manifests.values()]
    layouts = {id(own.layout): own.layout.num_bytes for own in known}
    return int(sum(layouts.values()) + sum(own.own_bytes for own in known))


def test_the_oldest_manifests_go_of_the_session_with_most() -> None:
    """Records of them fit none any more, and are counted; those of the newest are read."""
    job = limited(Cluster(world=2, names=NAMES), run_bytes=BYTES).start()
    for number in range(2, 400):
        job.declare(0, NAMES[number:], manifest_id=number)
    session, other = job.attempt.sessions.values()
    kept = list(session.manifests)
    for rank in range(2):
        job.stats(rank, 0, [1.0] * 1_000, manifest_id=1)
    for rank, many, number in ((0, 601, 399), (1, 1_000, 1)):
        job.stats(rank, 1, [1.0] * many, manifest_id=number)

    assert 50 < len(kept) < 390
    assert kept == list(range(400 - len(kept), 400))
    assert list(other.manifests) == [1]
    assert job.attempt.manifests.num_bytes <= BYTES // 8
    assert job.attempt.manifests.num_dropped == {"run_bytes": 399 - len(kept)}
    assert job.closed[-1] == 1
    assert job.health()["records"]["unresolved"] == 1


def test_where_every_rank_has_one_the_newest_is_not_taken() -> None:
    job = limited(Cluster(world=200, names=NAMES), run_bytes=BYTES)
    for rank in range(200):
        job.open(rank)
        job.declare(rank, shards=(f"{rank}/200",) * len(NAMES))
    known = [rank for rank, session in job.attempt.sessions.items() if session.manifests]

    assert known == list(range(len(known)))
    assert 10 < len(known) < 100
    assert job.attempt.manifests.num_bytes == taken(job) <= BYTES // 8


def test_what_is_counted_is_what_is_there() -> None:
    job = limited(Cluster(world=3, names=NAMES), run_bytes=BYTES).start()
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
    job = limited(Cluster(names=NAMES[:5]), run_bytes=220_000).start()
    for number in range(2, 40):
        job.declare(0, NAMES[: 5 + number % 10], manifest_id=number, frozen=(NAMES[0],))
        job.stats(0, number, [1.0] * (5 + (number - 2) % 10), manifest_id=number - 2)
    restart(job.entries)

    assert job.attempt.manifests.num_dropped.total() > 3


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
    assert job.attempt.manifests.num_dropped == {"total_bytes": 2}
    assert job.attempt.manifests.num_bytes == taken(job)


def test_names_and_groups_of_an_attempt_are_bounded() -> None:
    limit = 100 * 5_000 + 29_000
    job = limited(Cluster(names=NAMES[:100]), run_bytes=-(-8 * limit // 3)).start()
    job.declare(0, ["x" * 512 + str(i) for i in range(50)], manifest_id=2)
    groups = {f"g{i}": tuple(range(100)) for i in range(9)}
    job.declare(0, NAMES[:100], manifest_id=3, groups=groups)
    job.stats(0, 0, [1.0] * 100, manifest_id=3)

    assert len(job.attempt.layers.names) == 100
    assert list(job.attempt.layers.groups()) == ["g0", "g1"]
    assert job.attempt.layers.num_bytes <= limit
    assert job.health()["records"]["unresolved"] == 1
    assert job.closed == [0]
