"""`gradwatch layers`, against a real aggregator: which, in which order, with what numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from gradwatch_server.cli.app import app
from gradwatch_wire import Column
from tests.page.feeding import LAYERS, POISONED, STEPS, feed

LAST = STEPS - 1


@pytest.fixture
def layers(service: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run the command: `layers("run", "--sort", "name")`."""
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("GRADWATCH_URL", service.url)
    return lambda *arguments: CliRunner().invoke(app, ["layers", *arguments])


@pytest.fixture
def names(layers: Any) -> Callable[..., list[str]]:
    """Return the names that are listed."""

    def listed(*arguments: str) -> list[str]:
        return [
            json.loads(line)["name"] for line in layers(*arguments, "--json").stdout.splitlines()
        ]

    return listed


def test_the_worst_is_first_with_what_is_wrong_with_it(
    layers: Any, service: Any, peers: Any
) -> None:
    """The numbers are those of `/frames`, the places those of `/layers`."""
    feed(service, peers, "worst", range(STEPS), LAST)
    lines = layers("worst").stdout.splitlines()

    assert lines[0].split() == ["layer", "module", "elements", "norm", "usual", "gone", "wrong"]
    first = lines[1].split()
    assert first[:2] == [POISONED, POISONED.rpartition(".")[0]]
    assert (first[3], first[5]) == ("NaN", "nonfinite")
    assert len(lines) == 1 + len(LAYERS)
    rows = [json.loads(line) for line in layers("worst", "--json").stdout.splitlines()]
    frame = service.json(f"/runs/worst/frames/{LAST}", params={"worst": 1_000})
    known = service.json("/runs/worst/layers")["layers"]
    measured = {own["name"]: own for own in frame["layers"]}
    for row in rows:
        own = known[row["index"]] | measured[row["name"]]
        wrong = ["nonfinite"] if row["name"] == POISONED else []
        assert row == own | {"step": LAST, "gone_wrong": wrong}


def test_the_order_and_the_number_are_a_choice(
    names: Any, layers: Any, service: Any, peers: Any
) -> None:
    """A table that leaves some out says so; JSON is one document a line."""
    feed(service, peers, "order", range(3), None, ["b", "a", "c"])

    assert names("order", "--sort", "place") == ["b", "a", "c"]
    assert names("order", "--sort", "name") == ["a", "b", "c"]
    assert names("order", "--sort", "place", "--limit", "2") == ["b", "a"]
    assert len(names("order", "--limit", "1")) == 1
    assert "1 of 3 layers; --limit shows more" in layers("order", "--limit", "1").stdout
    assert layers("order", "--sort", "mood").exit_code == 2
    assert layers("order", "--limit", "0").exit_code == 2


def test_sizes_are_sorted_largest_first(names: Any, service: Any, peers: Any) -> None:
    """By the number of elements."""
    numel = Column.pack("<u8", [1, 1_000])
    peer = peers(service.ingest, run="sizes").attach(["small", "large"], numel=numel)
    peer.stats(0)
    peer.acked()
    service.shows(peer)

    assert names("sizes", "--sort", "size") == ["large", "small"]


def test_many_layers_with_long_names_are_asked_for_in_parts(
    names: Any, layers: Any, service: Any, peers: Any
) -> None:
    """An address has a greatest length, and a name may be 512 bytes of anything."""
    long = [f"{number:03d}" + "ü" * 250 for number in range(100)]
    peer = peers(service.ingest, run="many").attach(long)
    peer.stats(0, [float(number + 1) for number in range(100)])
    peer.acked()
    service.reaches("many", 0)

    assert names("many", "--sort", "place", "--limit", "1000") == long
    rows = [
        json.loads(line) for line in layers("many", "--limit", "100", "--json").stdout.splitlines()
    ]
    assert {row["name"]: row["l2"] for row in rows} == {
        name: float(number + 1) for number, name in enumerate(long)
    }


def test_before_the_first_step_there_is_no_norm(layers: Any, service: Any, peers: Any) -> None:
    """The layers are those that were declared."""
    peer = peers(service.ingest, run="early").attach(["a"])
    service.shows(peer)
    (row,) = map(json.loads, layers("early", "--json").stdout.splitlines())

    assert (row["name"], row["step"], row["l2"], row["gone_wrong"]) == ("a", None, None, [])
    assert layers("early").stdout.splitlines()[1].split() == ["a", "10", "-", "-"]


def test_hostile_names_are_text(layers: Any, service: Any, peers: Any) -> None:
    """Escaped for people; JSON carries them in ASCII."""
    feed(service, peers, "hostile", range(2), None, ["[red]x[/]", "a\x1b[31m\u202eb"])
    shown = layers("hostile")

    assert "[red]x[/]" in shown.stdout
    assert r"a\x1b[31m\u202eb" in shown.stdout
    assert "\x1b" not in shown.stdout + layers("hostile", "--json").stdout


def test_an_unknown_run_is_one_line(layers: Any) -> None:
    """And exit code 1."""
    done = layers("nope")

    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("gradwatch: no run 'nope'; ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [("runs",), ("health", "every"), ("layers", "every"), ("alerts",)],
)
def test_every_command_that_reads_has_json(
    layers: Any, service: Any, peers: Any, command: tuple[str, ...]
) -> None:
    """A document a line, ASCII, and nothing else; NaN is a string."""
    feed(service, peers, "every", range(STEPS), LAST)
    done = CliRunner().invoke(app, [*command, "--json"])

    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.isascii()
    for line in done.stdout.splitlines():
        assert isinstance(json.loads(line, parse_constant=pytest.fail), dict)


def test_tail_has_json_too(layers: Any, service: Any, peers: Any) -> None:
    """What is kept, then it stops."""
    feed(service, peers, "tailed", range(STEPS), LAST)
    done = CliRunner().invoke(app, ["tail", "tailed", "--past", "--json"])
    (event,) = map(json.loads, done.stdout.splitlines())

    assert (done.exit_code, event["rule"], event["origin"]["value"]) == (0, "nonfinite", "NaN")
