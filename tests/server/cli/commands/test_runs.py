"""`gradwatch runs`."""

from __future__ import annotations

import copy
import json
import math

import pytest
from rich.console import Console
from rich.table import Table

from gradwatch_server.cli import rendering
from tests.support.aggregator import Serve
from tests.support.command import Command
from tests.support.waiting import wait_until

NAN = math.nan


def test_a_name_is_never_cut(
    gradwatch: Command, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into a pipe all is printed; a narrow terminal leaves out what matters least."""
    service = serve()
    name = "llama-3.1-8b-" + "instruct-" * 12
    service.peer(run=name).attach().steps(0, 1.0)
    wait_until(lambda: [run["step"] for run in service.json("/runs")] == [0])
    for arguments in (["runs"], ["health", name]):
        assert f"{name} " in gradwatch(*arguments, GRADWATCH_URL=service.url, COLUMNS="60").stdout

    table = Table("run", "least", "less", "step", box=None)
    table.add_row("x" * 30, "y" * 20, "z" * 9, "7")
    for width, headers in ((80, "run least less step"), (60, "run less step"), (40, "run step")):
        console = Console(width=width, force_terminal=True, color_system=None, record=True)
        monkeypatch.setattr(rendering, "console", console)
        with console.capture() as printed:
            rendering.show_table(copy.deepcopy(table), least=("least", "less"))
        shown = printed.get().splitlines()
        assert shown[0].split() == headers.split()
        assert "x" * 30 in shown[1]


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
