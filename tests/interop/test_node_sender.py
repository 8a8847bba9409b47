"""A sender in another language, written from docs/protocol.md alone, with the real aggregator.

If it has to be changed because of something that the page does not say, the page is what is wrong.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from gradwatch_wire import Kind
from tests.support.aggregator import Aggregator

SENDER: Final = Path(__file__).with_name("sender.mjs")
NODE: Final = shutil.which("node")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NODE is None, reason="needs Node: there is no `node` on PATH"),
]


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[Aggregator]:
    made = Aggregator(tmp_path / "data")
    made.start()
    yield made
    made.close()


@pytest.fixture
def send(aggregator: Aggregator) -> Callable[..., list[dict[str, Any]]]:
    """Run the sender to its end: `send(run, steps, fault="")`; returns what it was answered."""

    def run_sender(run: str, steps: int, fault: str = "") -> list[dict[str, Any]]:
        host, _, port = aggregator.ingest.removeprefix("tcp://").rpartition(":")
        assert NODE is not None
        result = subprocess.run(
            [NODE, SENDER, host, port, run, str(steps), fault],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert (result.returncode, result.stderr) == (0, "")
        return [json.loads(line) for line in result.stdout.splitlines()]

    return run_sender


def test_its_records_are_stored_and_judged(
    aggregator: Aggregator, send: Callable[..., list[dict[str, Any]]]
) -> None:
    answers = send("from-node", 300)  # more than may be in one batch, and above small integers

    kinds = [answer["kind"] for answer in answers]
    assert kinds[0] == Kind.WELCOME.name
    assert all(answer["mine"] for answer in answers)
    assert max(answer.get("acked", 0) for answer in answers) == 302
    report = aggregator.health_of_ended("from-node")
    assert (report["records"]["stored"], report["records"]["lost"]) == (302, 0)
    assert (report["step"], report["point"], report["loss"]) == (299, "collect", 1 / 300)
    assert report["layers"]["total"] == 3
    assert (report["first_bad"]["layer"], report["first_bad"]["step"]) == ("block.0", 299)


def test_a_refusal_reaches_it(send: Callable[..., list[dict[str, Any]]]) -> None:
    """A run name that is none: it is told why, in one line."""
    (answer,) = send("no/name", 1)

    assert (answer["kind"], answer["mine"]) == (Kind.REFUSE.name, True)
    assert "run name 'no/name' is not 1 to 128 letters" in answer["reason"]


def test_a_malformed_record_is_refused_with_its_place(
    send: Callable[..., list[dict[str, Any]]],
) -> None:
    """An integer where a float has to be: so it is told, instead of waiting for an ACK for ever."""
    answers = send("integers", 1, "integer")

    refused = answers[-1]
    assert (refused["kind"], refused["mine"]) == (Kind.REFUSE.name, True)
    assert refused["reason"] == "expected a float, got int 1, at STATS.scalars.loss"


def test_another_major_is_refused_in_this_one(send: Callable[..., list[dict[str, Any]]]) -> None:
    answers = send("future", 1, "foreign")

    assert answers[0]["kind"] == Kind.REFUSE.name
    assert answers[0]["reason"] == (
        "expected protocol version 1, got version 2, at message.version"
    )
