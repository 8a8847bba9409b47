"""Nodes of two minor versions that follow each other are one cluster; others are refused."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwatch_wire import __version__
from tests.support.aggregator import Aggregator
from tests.support.cluster import Cluster
from tests.support.command import run_command
from tests.support.nats_servers import NATSServers
from tests.support.peer import NewPeer
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MAJOR, MINOR = (int(part) for part in __version__.split(".")[:2])
NEXT = f"{MAJOR}.{MINOR + 1}.0"


def of_version(version: str, directory: Path) -> dict[str, str]:
    """Return the environment in which gradwatch is of another version, and otherwise this one."""
    copy = directory / f"gradwatch-{version}"
    shutil.copytree(ROOT / "shared", copy)
    file = copy / "gradwatch_wire" / "version.py"
    text, count = re.subn('__version__ = ".*"', f'__version__ = "{version}"', file.read_text())
    assert count == 1
    file.write_text(text)
    places = [str(copy), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(places)}


@pytest.fixture
def mixed(tmp_path: Path, postgres: PostgresServer) -> Iterator[Cluster]:
    """Two nodes of which the second is of the next minor version."""
    with NATSServers(tmp_path / "nats") as nats:
        cluster = Cluster(tmp_path, nats.urls, postgres.make_database(), 2)
        cluster.nodes["b"].environ.update(of_version(NEXT, tmp_path))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()


def states(node: Aggregator, run: str) -> list[str]:
    """Return the states that were told of the NaN of a run."""
    events = node.json("/alerts", params={"run": run})
    return [str(own["state"]) for own in events if own["rule"] == "nonfinite"]


def is_told(node: Aggregator, run: str) -> bool:
    """Tell whether the NaN of a run is told."""
    return states(node, run) == ["firing"]


def refusal(node: Aggregator, directory: Path, **environ: str) -> str:
    """Return the one line with which another node like this one ends."""
    done = run_command(
        directory,
        *("serve", "--http", "127.0.0.1:0", "--ingest", "tcp://127.0.0.1:0", "--node", "late"),
        **(node.environ | environ),
    )
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_a_cluster_is_upgraded_node_by_node(
    mixed: Cluster, peers: NewPeer, tmp_path: Path, postgres: PostgresServer
) -> None:
    """Each run goes on at a node of the other version; a third version is not let in."""
    old, new = mixed.nodes.values()
    versions = {own["id"][0]: own["version"] for own in old.json("/cluster")["nodes"]}
    assert versions == {"a": __version__, "b": NEXT}

    runs = {node: mixed.run_of(node) for node in "ab"}
    sending = {node: peers(old.ingest, run=run).attach() for node, run in runs.items()}
    for peer in sending.values():
        peer.steps(1, *[1.0] * 12, float("nan"))
    pairs = [(node, run) for node in mixed.nodes.values() for run in runs.values()]
    wait_until(lambda: all(is_told(node, run) for node, run in pairs), "both alerts on both nodes")

    # A later version's tables have more in them; who runs goes on, who starts says so.
    ledger = old.environ["GRADWATCH_LEDGER"]
    far = of_version(f"{MAJOR}.{MINOR + 2}.0", tmp_path)
    other = of_version(f"{MAJOR + 1}.{MINOR}.0", tmp_path)
    line = refusal(old, tmp_path, **far)
    assert re.fullmatch(
        rf"gradwatch: the node a-\w+ runs gradwatch '{__version__}', and this one is \S+: the nodes"
        r" of a cluster are of one minor version or of two .*\n",
        line,
    ), line
    assert "runs gradwatch" in refusal(old, tmp_path, **other)
    postgres.execute(
        "ALTER TABLE gradwatch.alert_events ADD COLUMN more text DEFAULT 'x';"
        "UPDATE gradwatch.schema_version SET version_num = '9999'",
        url=ledger,
    )
    assert "has schema version 9999" in refusal(old, tmp_path)

    new.stop(signal.SIGTERM)
    mixed.settle()
    peer = sending["b"]
    peer.steps(14, *[1.0] * 30)
    old.shows(peer)
    resolved = wait_until(lambda: states(old, runs["b"])[1:], "it goes on with what was saved")
    assert resolved == ["resolved"]
    health = old.health(runs["b"])
    assert (health["records"]["stored"], health["records"]["lost"]) == (peer.seq, 0)
