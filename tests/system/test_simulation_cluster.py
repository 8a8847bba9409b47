"""The simulated cluster of several nodes keeps every promise, and a planted bug breaks one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import pytest
from typer.testing import CliRunner

from gradwatch_server.storage.jetstream.subject import Subject
from gradwatch_server.storage.store import StorageError, StorageFault
from simulation.__main__ import app
from simulation.nodes.cluster import NodeCluster
from simulation.nodes.key_value import Bucket
from simulation.nodes.simulate import simulate_nodes

SEEDS = 16
SEEDS_FOR_A_BUG = 40
NUMBERS = count()

ZOMBIES = {"points": 50, "pauses": 1.0, "pause_s": 15.0, "lease_s": 2.0}
"""Nodes that are paused past their lease, and go on in the midst of something."""
MANY_SEEDS = 100


def test_seeds_keep_every_promise() -> None:
    """Whatever happens to nodes: nothing is lost unsaid, no alert is doubled, missing, or other."""
    check_seeds(SEEDS)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute and a half of work, and a machine may have much else to do
def test_many_seeds_keep_every_promise() -> None:
    """Also where it takes several things at once."""
    check_seeds(MANY_SEEDS)


def check_seeds(number: int) -> None:
    outcomes = [simulate_nodes(seed) for seed in range(number)]

    assert {o.seed: (o.violation, o.trace) for o in outcomes if o.violation} == {}
    # And things did happen.
    assert sum(o.stored for o in outcomes) > 20 * number
    assert sum(o.alerts for o in outcomes) > 5 * number
    assert sum(o.boots for o in outcomes) > 1.5 * number
    assert sum(o.epochs for o in outcomes) > 4 * number
    assert any(o.refused for o in outcomes)


QUIET = {
    "points": 0,
    **dict.fromkeys(("leave", "cut", "ledger_cut", "pair_cut", "leader", "buckets", "away"), 0.0),
    **dict.fromkeys(("unanswered", "uncertain", "lose", "repeat", "move", "forget"), 0.0),
    "lease_s": 3.0,
    "nodes": 3,
    "partitions": 4,
}
"""Nothing befalls nodes."""


def test_no_partition_moves_while_leaders_are_chosen() -> None:
    """However long that takes: all leases run out, and each node goes on with what it has."""
    elections = QUIET | {"leader": 0.05, "cut_s": 20.0}
    for seed in range(7):
        outcome = simulate_nodes(seed, changes=elections)
        assert outcome.violation is None
        # At the start they come one after the other, and move them once or twice.
        assert outcome.epochs <= 12, seed


def test_the_same_seed_is_the_same_run() -> None:
    """Or a failing one could not be looked at again."""
    for seed in (2, 11):
        assert simulate_nodes(seed) == simulate_nodes(seed)


real_write = Subject._write


def writes_after_anybody(subject: Any, label: Any, payload: bytes) -> int:
    """Write after whatever is the last, whoever wrote that."""
    while True:
        try:
            return real_write(subject, label, payload)
        except StorageError as error:
            if error.fault is not StorageFault.GONE:
                raise
        for stored in subject._stream.read(subject.name, subject.last_sequence, headers_only=True):
            subject.last_sequence = stored.sequence


def lives_for_ever(bucket: Any, key: str) -> Any:
    """Return a key whatever its age."""
    return bucket._keys.get(key)


def test_leases_end_although_their_keys_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node knows by itself which ones were not renewed."""
    monkeypatch.setattr(Bucket, "_alive", lives_for_ever)
    for seed in range(7):
        assert simulate_nodes(seed).violation is None


@pytest.mark.parametrize(
    ("where", "bug", "faults", "promise"),
    [
        (
            "gradwatch_server.storage.jetstream.subject.Subject._write",
            writes_after_anybody,
            ZOMBIES,
            "no entry of a lower epoch comes after one of a higher",
        ),
        (
            "simulation.nodes.ledger.LedgerSession.check",
            lambda _: None,
            ZOMBIES,
            "nothing is written to the ledger once a higher epoch has the partition",
        ),
        (
            "gradwatch_server.cluster.ownership.absences.Absences.awaited",
            lambda _, absent, _steady_s: frozenset(absent),
            {},
            "all partitions have one owner in the end",
        ),
        (
            "gradwatch_server.cluster.ownership.membership.Membership._lose",
            lambda *_: None,
            {"cut": 0.05, "cut_s": 30.0, "nodes": 3},
            "one node alone answers for a partition",
        ),
        (
            "gradwatch_server.cluster.ownership.owner_records.OwnerRecords.read",
            lambda _: [],
            {"cut": 0.05, "cut_s": 30.0, "nodes": 3, "forget": 0.0},
            "a node that has a lease again has read what others took",
        ),
        (
            "gradwatch_server.storage.jetstream.subject._digest",
            lambda *_: next(NUMBERS).to_bytes(16),
            {"unanswered": 0.3, "leader": 0.1, "cut_s": 20.0, "points": 0, "lease_s": 60.0},
            "an owner ends only for one of a later epoch",
        ),
    ],
    ids=[
        "no fence in the log",
        "no fence in the ledger",
        "waits for ever",
        "keeps what others took",
        "reads nothing anew",
        "an id for each try",
    ],
)
def test_a_planted_bug_is_found(
    where: str,
    bug: Callable[..., Any],
    faults: Mapping[str, float],
    promise: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By some seed, as the promise that it breaks, where the faults that show it are many."""
    monkeypatch.setattr(where, bug)
    broken = set()
    for seed in range(SEEDS_FOR_A_BUG):
        violation = simulate_nodes(seed, changes=faults).violation
        if violation is not None:
            broken.add(violation.partition(":")[0])
        if promise in broken:
            return
    pytest.fail(f"it broke {broken or 'nothing'} in {SEEDS_FOR_A_BUG} seeds")


def test_the_command_runs_seeds_or_shows_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing one with the command that shows it."""
    done = CliRunner().invoke(app, ["--cluster", "--seeds", "2"])
    assert done.output.startswith("2 seeds kept every promise, ")

    monkeypatch.setattr(NodeCluster, "live_nodes", lambda *_: set())
    done = CliRunner().invoke(app, ["--cluster", "--seeds", "1"])
    assert done.exit_code == 1
    assert re.search(r"^again: scripts/simulate --cluster --seed 0$", done.output, re.MULTILINE)


def test_long_runs_are_of_one_process() -> None:
    """One line says so."""
    done = CliRunner().invoke(app, ["--cluster", "--long"])
    assert done.exit_code == 2
    assert "--long and --cluster" in done.output
