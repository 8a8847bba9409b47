"""What a notebook shows of a watch: text in a table, whatever the names, and never an error."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
import torch
from torch import nn

import gradwatch
from gradwatch._watch.notebook import html_table
from gradwatch_wire import Bye
from tests.support.waiting import wait_until

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e\"'&</table><script>"


def rows_of(watch: Any) -> dict[str, str]:
    """Return what stands beside one another in the table."""
    html = watch._repr_html_()
    pairs = re.findall(r'<tr><th scope="row">([^<]*)</th><td>([^<]*)</td></tr>', html)
    shown = "".join(f'<tr><th scope="row">{one}</th><td>{two}</td></tr>' for one, two in pairs)
    assert html == f"<table><caption>gradwatch</caption><tbody>{shown}</tbody></table>"
    return {unescape(name): unescape(value) for name, value in pairs}


def train(watch: gradwatch.Watch, model: nn.Module, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        watch.collect()


def test_it_says_how_far_it_is_and_whether_the_aggregator_answers(
    aggregator: Any, attach: Any
) -> None:
    """The counters of `stats()`, and what identifies the process."""
    model = nn.Linear(4, 2)
    watch = attach(model, run="note")
    train(watch, model, 3)
    wait_until(lambda: watch.stats()["acked"] == watch.stats()["sent"] > 3)
    rows = rows_of(watch)

    assert (rows["run"], rows["rank"], rows["step"]) == ("note", "0 of 1", "3")
    assert (rows["layers"], rows["steps collected"]) == ("2", "3")
    sent = watch.stats()["sent"]
    assert rows["records"] == f"{sent} sent, {sent} acked, 0 pending"
    assert rows["given up"] == "0 dropped, 0 oversize, 0 evicted, 0 spill_dropped"
    assert re.fullmatch(
        re.escape(aggregator.endpoint) + r" answers, \d+\.\d s ago", rows["aggregator"]
    )
    assert (rows["faults"], rows["last fault"]) == ("0", "none")


def test_it_says_that_nobody_answers_that_it_was_refused_and_that_it_is_closed(
    new_aggregator: Any, attach: Any
) -> None:
    """Each in words that say what to do, where something can be done."""
    alone = attach(nn.Linear(4, 2), endpoint="tcp://127.0.0.1:1")
    assert "has not answered: no aggregator answered; start one" in rows_of(alone)["aggregator"]
    strict = new_aggregator()
    strict.refusal = HOSTILE
    refused = attach(nn.Linear(4, 2), endpoint=strict.endpoint)
    wait_until(lambda: "refuses: " in rows_of(refused)["aggregator"])
    assert rows_of(refused)["last fault"].startswith("refused: the aggregator says: ")
    alone.close()
    assert rows_of(alone)["aggregator"] == "tcp://127.0.0.1:1 closed"


def test_of_several_endpoints_it_says_which_one_and_which_else(
    aggregator: Any, new_aggregator: Any, attach: Any
) -> None:
    """In the order in which they would be tried."""
    second, third = new_aggregator(), new_aggregator()
    ways = [aggregator.endpoint, second.endpoint, third.endpoint]
    rows = rows_of(attach(nn.Linear(4, 2), endpoint=ways))

    assert rows["aggregator"].startswith(f"{ways[0]} ")
    assert rows["else"] == f"{ways[1]}, {ways[2]}"
    assert "else" not in rows_of(attach(nn.Linear(4, 2)))


def test_hostile_texts_stay_text(attach: Any) -> None:
    """No tag, no quote, no control character and nothing that turns the direction of text."""
    watch = attach(nn.Linear(4, 2))
    watch._faults.note("collect", HOSTILE)
    shown = rows_of(watch)["last fault"]

    assert shown == f"collect: {HOSTILE}".encode("unicode_escape").decode()
    assert shown.isprintable()
    assert html_table("<b>", []) == "<table><caption>&lt;b&gt;</caption><tbody></tbody></table>"


def test_it_never_raises_and_changes_nothing(
    aggregator: Any, attach: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What breaks in it shows the run alone; no gradient, record or fault comes of looking."""
    model = nn.Linear(4, 2)
    watch = attach(model, run="calm")
    train(watch, model, 1)
    before = watch.stats()["collected"], watch.stats()["faults"]
    for _ in range(50):
        rows_of(watch)
    assert (watch.stats()["collected"], watch.stats()["faults"]) == before
    monkeypatch.setattr(watch._sender, "describe_aggregator", lambda: 1 / 0)
    assert rows_of(watch) == {"run": "calm"}
    watch.close()
    assert len(aggregator.stats(1)) == len(aggregator.of(Bye)) == 1


def test_a_watch_that_is_switched_off_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook with `GRADWATCH_DISABLED` shows why nothing comes."""
    monkeypatch.setenv("GRADWATCH_DISABLED", "1")
    watch = gradwatch.attach(nn.Linear(4, 2))

    assert rows_of(watch) == {"state": "switched off by GRADWATCH_DISABLED"}
