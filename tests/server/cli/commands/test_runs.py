"""`gradwatch runs`."""

from __future__ import annotations

import json
import math

from tests.support.aggregator import Serve
from tests.support.command import Command
from tests.support.waiting import wait_until

NAN = math.nan


def test_runs_are_listed(gradwatch: Command, serve: Serve) -> None:
    """A table for people, a document a line for programs."""
    service = serve()
    assert gradwatch("runs", "--url", service.url).stdout == "no runs yet\n"
    service.peer(run="one").attach().steps(0, NAN)
    service.peer(run="two").attach().steps(0, 1.0)
    wait_until(lambda: [run["step"] for run in service.json("/runs")] == [0, 0])

    table = gradwatch("runs", GRADWATCH_URL=service.url).stdout.splitlines()
    lines = gradwatch("runs", "--json", "--url", service.url + "/").stdout.splitlines()

    assert table[0].split() == [
        "run",
        "phase",
        "status",
        "step",
        "ranks",
        "score",
        "firing",
        "stored",
        "lost",
    ]
    two, one = (line.split()[:3] for line in table[1:])
    assert one == ["one", "running", "critical"]
    assert two[:2] == ["two", "running"]
    assert two[2] in ("healthy", "stalled")  # it says no more, and a command may take long
    assert [json.loads(line)["run"] for line in lines] == ["two", "one"]
