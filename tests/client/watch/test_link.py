"""`link`: where else there is a page about the run."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

import gradwatch
from gradwatch_wire import Event
from tests.support.waiting import wait_until

URL = "https://wandb.ai/team/project/runs/1?x=1#a"


def test_a_link_is_an_event_and_no_step(aggregator: Any, attach: Any) -> None:
    """Before the first step, and from another thread; BEAT goes on saying that none was taken."""
    watch = attach(nn.Linear(3, 1))
    thread = threading.Thread(target=watch.link, args=("W&B", URL))
    thread.start()
    thread.join()
    wait_until(lambda: aggregator.of(Event), "the event")
    num_beats = len(aggregator.beats)
    wait_until(lambda: len(aggregator.beats) > num_beats, "a beat after it")

    assert aggregator.of(Event) == [Event(name="link", step=0, data={"name": "W&B", "url": URL})]
    assert aggregator.beats[-1].last_step == -1
    assert watch.stats()["faults"] == 0


def test_a_link_has_the_step_under_way_and_comes_in_order(aggregator: Any, attach: Any) -> None:
    model = nn.Linear(3, 1)
    watch = attach(model)
    for _ in range(2):
        model(torch.ones(2, 3)).sum().backward()
        watch.collect()
    watch.link("W&B", URL)
    watch.link("W&B", f"{URL}2")
    watch.close()
    watch.link("late", URL)

    assert [own.step for own in aggregator.of(Event)] == [2, 2]
    assert [own.data["url"] for own in aggregator.of(Event)] == [URL, f"{URL}2"]
    assert (watch.stats()["collected"], watch.stats()["faults"]) == (2, 0)


@pytest.mark.parametrize(
    ("name", "url", "why"),
    [
        ("", URL, "name: 1 to 64 printable characters, got ''"),
        ("x" * 65, URL, "name: 1 to 64 printable characters, got 'xxx"),
        ("a\nb", URL, "name: 1 to 64 printable characters"),
        (7, URL, "name: a string, got int"),
        ("W&B", None, "url: a string, got NoneType"),
        ("W&B", "wandb.ai/team", "url: an address like https://host/path"),
        ("W&B", "ftp://wandb.ai", "url: an address like https://host/path"),
        ("W&B", "https://h/" + "x" * 1_015, "url: at most 1,024 characters, got 1,025"),
        ("W&B", "https://me:secret@h/", "url: an address without user name and password"),
    ],
)
def test_what_is_wrong_is_told_once_and_left_out(
    aggregator: Any, attach: Any, caplog: Any, name: Any, url: Any, why: str
) -> None:
    """Never raised into training, and a password is not repeated."""
    watch = attach(nn.Linear(3, 1))
    watch.link(name, url)
    watch.link(name, url)
    watch.close()

    (line,) = caplog.messages
    assert line.startswith("gradwatch: link: ")
    assert why in line
    assert "secret" not in line
    assert watch.stats()["faults"] == 2
    assert aggregator.of(Event) == []


def test_a_watch_that_is_switched_off_takes_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWATCH_DISABLED", "1")
    watch = gradwatch.attach(nn.Linear(3, 1))
    watch.link("W&B", URL)
    watch.link("", None)  # type: ignore[arg-type]  # not checked

    assert watch.stats()["faults"] == 0
