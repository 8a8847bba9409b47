"""Answers of `/runs` and `/runs/{id}`, from a view alone."""

from __future__ import annotations

import math

from gradwatch_server.core.views.health import health
from gradwatch_server.core.views.runs import describe_run, name_run, summarize
from gradwatch_server.core.views.snapshot import view_run
from tests.support.core import Cluster


def test_a_summary_agrees_with_health() -> None:
    """Score and firing alerts are single numbers; ranks are counted."""
    job = Cluster(world=2, names=("a", "b")).start()
    job.step(0, [1.0, math.nan])
    view = view_run(job.state.runs["gpt"])
    report = health(view, {}, view.updated_ns)
    summary = summarize(view, {}, view.updated_ns).row()

    assert list(summary) == [
        *("run", "phase", "status", "reason", "attempt", "step", "updated_at", "world"),
        *("records", "loss", "score", "ranks", "firing"),
    ]
    assert (summary["run"], summary["attempt"], summary["step"]) == ("gpt", 1, 0)
    assert (summary["status"], summary["score"]) == (report["status"], report["score"]["last"])
    assert summary["reason"] == report["reasons"][0]
    assert (summary["ranks"], summary["world"]) == (2, 2)
    assert summary["firing"] == report["alerts"]["firing"] == 1
    assert name_run(view) == {"run": "gpt", "attempt": 1}


def test_a_fault_of_the_aggregator_shows_in_the_summary() -> None:
    job = Cluster(names=("a",)).start()
    job.step(0)
    view = view_run(job.state.runs["gpt"])

    assert summarize(view, {}, view.updated_ns).row()["status"] == "healthy"
    assert summarize(view, {}, view.updated_ns, "disk full").row()["status"] == "incomplete"


def test_the_description_has_every_attempt_and_layer() -> None:
    job = Cluster(names=("a", "b")).start()
    job.step(0)
    job.event(0, "mark")
    job.start()
    report = describe_run(view_run(job.state.runs["gpt"]))

    assert [attempt["attempt"] for attempt in report["attempts"]] == [1, 2]
    assert [attempt["frames"] for attempt in report["attempts"]] == [1, 0]
    assert all(attempt["world"] == 1 for attempt in report["attempts"])
    assert [layer["name"] for layer in report["layers"]] == ["a", "b"]
    assert report["created_at"] == report["attempts"][0]["started_at"]
