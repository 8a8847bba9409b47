"""docs/cluster.md on one machine, by its own commands: the owner is killed, the alert comes, once.

The training is the page's, with fewer steps; ports are others, and PostgreSQL runs as another user
where the tests run as root.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.listener import Listener
from tests.support.ports import ReservedPort
from tests.support.programs import program
from tests.support.shell import Shell
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "cluster.md").read_text("utf-8")
SECTION: Final = PAGE.split("\n## Try it on one machine\n")[1].split("\n## ")[0]
SERVERS, NODE, TRAINING, OWNER, ALERTS, END = re.findall(
    r"^```bash\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL
)
NODES: Final = ("1", "2", "3")
OF_THE_PAGE, POISON_STEP = 1500, 150
KILL_STEP: Final = POISON_STEP - 50  # so that the NaN comes while nobody owns the run
WITHIN_S: Final = 10.0
SLACK_S: Final = 5.0
"""What a busy machine may add: here one machine runs all, and whatever else is tested."""

AS_NOBODY: Final = "setpriv --reuid=nobody --regid=nogroup --clear-groups"


class Walk:
    """Somebody who follows the page, with a home of their own."""

    def __init__(self, home: Path) -> None:
        self._ports: defaultdict[str, ReservedPort] = defaultdict(ReservedPort)
        self._home = home
        self._directory = home / "gradwatch-try"
        self._shells: list[Shell] = []
        self._directory.mkdir()
        if os.geteuid() == 0:
            home.chmod(0o755)
            shutil.chown(self._directory, "nobody", "nogroup")

    def shell(self, name: str, directory: Path) -> Shell:
        """Open another terminal."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        home = str(self._home)
        settings = {"PATH": path, "HOME": home, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        self._shells.append(Shell(directory, self._home / f"{name}.log", **settings))
        return self._shells[-1]

    def here(self, text: str, node: str = "") -> str:
        """Return commands of the page as they are run here."""
        if node:
            text = text.replace("N=1\n", f"N={node}\n").replace("$N", node)
        if os.geteuid() == 0:
            text = text.replace("$pg/", f"{AS_NOBODY} $pg/")
        return re.sub(r"\b1[458]\d{3}\b", lambda own: str(self._ports[own[0]].number), text)

    def close(self) -> None:
        """End all that runs, and remove all of it."""
        for shell in reversed(self._shells):
            shell.end()
        running = self._directory / "pg" / "postmaster.pid"  # pg_ctl gave it a session of its own
        if running.exists():
            os.kill(int(running.read_text("utf-8").split()[0]), signal.SIGQUIT)
            wait_until(lambda: not running.exists(), "PostgreSQL has ended")
        for port in self._ports.values():
            port.close()
        shutil.rmtree(self._home)


@pytest.fixture
def walk() -> Iterator[Walk]:
    """In a home that another user may look into, as pytest's own directories cannot be."""
    program("nats-server", "nats-server")
    program("initdb", "postgresql")
    made = Walk(Path(tempfile.mkdtemp(prefix="gradwatch-walk-")))
    yield made
    made.close()


def ask(url: str) -> Any:
    """Return what a node answers; nothing if it cannot just now."""
    try:
        answer = httpx.get(url, timeout=PATIENCE_S, trust_env=False)
    except httpx.TransportError:
        return {}
    return answer.json() if answer.is_success else {}


def test_who_follows_the_page_and_kills_the_owner_is_told_once(walk: Walk) -> None:
    """Within ten seconds, whichever node is asked."""
    first = walk.shell("first", ROOT)
    first.run(walk.here(SERVERS))
    nodes = {number: walk.shell(f"node-{number}", ROOT) for number in NODES}
    for number, shell in nodes.items():
        shell.type(walk.here(NODE, number))
    urls = {number: walk.here(f"http://127.0.0.1:1844{number}") for number in NODES}
    wait_until(lambda: all(ask(f"{url}/readyz") for url in urls.values()), "nodes are ready")
    asked = walk.here(OWNER)
    owner = wait_until(lambda: json.loads(first.run(asked))["owner"], "the run has an owner")

    assert str(OF_THE_PAGE) in TRAINING
    training = walk.shell("training", ROOT)
    training.type(walk.here(TRAINING.replace(str(OF_THE_PAGE), str(POISON_STEP))))
    training.type("exit")
    victim = owner.partition("-")[0].removeprefix("n")
    living = [number for number in NODES if number != victim]
    path = "/runs/walk/health"

    def is_far() -> bool:
        assert not training.has_ended, training.output
        return (ask(urls[living[0]] + path).get("step") or 0) >= KILL_STEP

    wait_until(is_far, "the run is that far")
    with ExitStack() as stack:
        streams = [Listener(urls[number], "/alerts/stream", after=0) for number in living]
        for stream in streams:
            stack.callback(stream.close)
        nodes[victim].end(signal.SIGKILL)
        killed_s = time.monotonic()
        wait_until(lambda: training.has_ended, "the alert has stopped the training")
        assert ": stop, " in training.output
        wait_until(lambda: all(map(told_of, streams)), "all who listen are told")
        told = [told_of(stream) for stream in streams]
        assert [len(own) for own in told] == [1, 1]
    assert told[0][0][1] == told[1][0][1]
    assert max(at_s for own in told for at_s, _ in own) - killed_s <= WITHIN_S + SLACK_S

    asks = walk.here(ALERTS.replace("18443", f"1844{living[1]}"))
    shown = first.run(asks)
    assert len(re.findall(rf"nonfinite: .* at step {POISON_STEP} ", shown)) == 1, shown
    for number in living:
        nodes[number].end(signal.SIGINT)
    first.run(walk.here(END))


def told_of(stream: Listener) -> list[tuple[float, str]]:
    """Return when the NaN was told, and the id of the alert."""
    pairs = zip(stream.times_s, stream.events, strict=False)
    kind = ("nonfinite", "firing", "walk")
    return [
        (at_s, own["id"]) for at_s, own in pairs if (own["rule"], own["state"], own["run"]) == kind
    ]
