"""What a watch says of itself: its run, where it is seen, and how far it is."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch
from torch import nn

import gradwatch
from gradwatch._watch.watch import find_http_url
from tests.support.recording import Sink
from tests.support.waiting import wait_until

NOWHERE = "tcp://127.0.0.1:9"


@pytest.mark.parametrize(
    ("bound", "endpoint", "url"),
    [
        ("", "tcp://127.0.0.1:5555", None),
        ("http://127.0.0.1:8420", "tcp://127.0.0.1:5555", "http://127.0.0.1:8420"),
        ("http://127.0.0.1:8420", "ipc:///tmp/gw", "http://127.0.0.1:8420"),
        ("http://127.0.0.1:8420", "tcp://localhost:5555", "http://127.0.0.1:8420"),
        ("http://[::1]:8420", "tcp://[::1]:5555", "http://[::1]:8420"),
        # Loopback of another machine: not to be reached from here.
        ("http://127.0.0.1:8420", "tcp://node-7:5555", None),
        ("http://127.0.0.1:8420", "tcp://10.0.0.7:5555", None),
        # Every address of the aggregator's machine: by that which records go to.
        ("http://0.0.0.0:8420", "tcp://node-7:5555", "http://node-7:8420"),
        ("https://[::]:8420", "tcp://10.0.0.2:0;10.0.0.7:5555", "https://10.0.0.7:8420"),
        ("http://0.0.0.0:8420", "ipc:///tmp/gw", "http://127.0.0.1:8420"),
        # One address: that one.
        ("http://10.0.0.7:8420", "tcp://node-7:5555", "http://10.0.0.7:8420"),
        # What an aggregator would not say.
        ("javascript:alert(1)", "tcp://127.0.0.1:5555", None),
        ("http://a:1/\nb", "tcp://127.0.0.1:5555", None),
    ],
)
def test_the_url_is_one_that_can_be_reached_from_here(
    bound: str, endpoint: str, url: str | None
) -> None:
    assert find_http_url(bound, endpoint) == url


def test_the_url_is_known_once_the_aggregator_has_answered(aggregator: Sink) -> None:
    aggregator.welcome["http"] = "http://0.0.0.0:8420"
    watch = aggregator.attach(nn.Linear(2, 2), run="gpt2-small")

    assert wait_until(lambda: watch.url, "WELCOME") == "http://127.0.0.1:8420/?run=gpt2-small"
    assert watch.http_url == "http://127.0.0.1:8420"
    alone = gradwatch.attach(nn.Linear(2, 2), endpoint=NOWHERE)
    assert (alone.url, alone.http_url) == (None, None)


def test_a_generated_name_is_seen_and_a_given_one_is_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    generated = gradwatch.attach(nn.Linear(2, 2), endpoint=NOWHERE)
    gradwatch.attach(nn.Linear(2, 2), endpoint=NOWHERE, run="given")
    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]

    assert re.fullmatch(r"run-\d{8}-\d{6}-\d+", generated.run)
    assert line == (
        f"gradwatch: run {generated.run}, rank 0 of 1, 2 layers, to {NOWHERE}; "
        "pass attach(run=...) or set GRADWATCH_RUN for another name"
    )


def test_a_script_without_logging_shows_the_generated_name(run_script: Any) -> None:
    script = "import gradwatch, torch\nprint(gradwatch.attach(torch.nn.Linear(2, 2)).run)\n"
    result = run_script(script)

    assert f"gradwatch: run {result.stdout.strip()}, rank 0 of 1" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_repr_says_who_it_is_and_how_far(aggregator: Sink) -> None:
    model = nn.Linear(2, 2)
    watch = aggregator.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), run="gpt2-small")
    begin = f"<gradwatch.Watch run='gpt2-small' rank=0 of 1 endpoint='{aggregator.endpoint}'"
    assert repr(watch) == f"{begin} step=0 collected=0>"

    model(torch.ones(1, 2)).sum().backward()
    watch._hooks._optimizers[0].step()
    assert repr(watch) == f"{begin} step=1 collected=1>"
    watch.close()
    assert repr(watch) == f"{begin} step=1 collected=1, closed>"


def test_a_watch_that_does_nothing_has_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script reads them without asking which one it has."""
    monkeypatch.setenv("GRADWATCH_DISABLED", "1")
    watch = gradwatch.attach(nn.Linear(2, 2), run="gpt2-small")

    assert (watch.run, repr(watch)) == ("", "<gradwatch.NullWatch>")
    assert (watch.url, watch.http_url) == (None, None)
