"""`/metrics` and `/runs/{run}/ranks` of a real process."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2s
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gradwatch_server.api.metrics import MAX_LABELLED_RUNS
from gradwatch_server.budgets import BUDGETS
from gradwatch_wire import Event, Hello


def event(step: int) -> Event:
    return Event(name="mark", step=step)


@pytest.fixture
def metrics(serve: Any) -> Callable[[], dict[tuple[str, str], float]]:
    """Read them: name and value of the one label, `""` without, to number."""
    service = serve()

    def read() -> dict[tuple[str, str], float]:
        answer = service.get("/metrics").raise_for_status()
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return {
            (sample.name, "".join(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    read.service = service  # type: ignore[attr-defined]
    return read


def test_records_are_counted_by_what_became_of_them(metrics: Any, peers: Any) -> None:
    """Stored, lost, duplicate; their bytes, and how long the log took."""
    peer = peers(metrics.service.ingest).attach()
    peer.steps(0, 1.0, 1.0)
    peer.send_as(2, 1, event(2))
    peer.seq = 7
    peer.send(event(8), low=8)
    peer.acked()
    found = metrics()

    assert found["gradwatch_records_total", "stored"] == 4
    assert found["gradwatch_records_total", "duplicate"] == 1
    assert found["gradwatch_records_total", "lost"] == 4
    assert found["gradwatch_stored_bytes_total", ""] > 100
    assert found["gradwatch_log_write_seconds_count", ""] >= 3
    assert found["gradwatch_ingest_lag_seconds_sum", ""] > 0
    assert found["gradwatch_ready", ""] == 1


def test_what_is_refused_is_counted_by_kind(metrics: Any, peers: Any, wait_until: Any) -> None:
    """Kinds are ours, so that no peer can add series."""
    peer = peers(metrics.service.ingest, run="a b")
    peer.say(peer.greeting)
    peer.send_frames(b"\x01", b"nonsense")
    wait_until(lambda: metrics().get(("gradwatch_refused_total", "malformed")))

    assert metrics()["gradwatch_refused_total", "run name"] == 1


def test_every_budget_is_there_with_its_limit(serve: Any) -> None:
    """As it is set, and what was evicted and refused by it."""
    service = serve(GRADWATCH_BUDGETS__RUNS="7")
    families = text_string_to_metric_families(service.get("/metrics").text)
    found = {(s.name, s.labels.get("budget")): s.value for f in families for s in f.samples}
    names = {budget.name for budget in BUDGETS}

    assert found["gradwatch_budget_limit", "runs"] == 7
    for metric in ("limit", "evicted_total", "refused_total"):
        own = {label for name, label in found if name == f"gradwatch_budget_{metric}"}
        assert own == names, metric


def test_runs_ranks_and_alerts_are_counted_by_state(
    metrics: Any, peers: Any, wait_until: Any
) -> None:
    """Also those that there are none of; score and loss by run."""
    peer = peers(metrics.service.ingest).attach()
    peer.steps(0, 1.0, float("nan"))
    peer.seq = 9
    peer.send(event(10), low=10)
    peer.acked()
    wait_until(lambda: metrics()["gradwatch_alerts_firing", "warning"] == 1)
    found = metrics()

    assert found["gradwatch_runs", "critical"] == 1
    assert found["gradwatch_runs", "healthy"] == 0
    assert found["gradwatch_ranks", "alive"] == 1
    assert found["gradwatch_ranks", "lost"] == 0
    assert found["gradwatch_alerts_firing", "critical"] == 1
    assert found["gradwatch_alerts_firing", "info"] == 0
    assert found["gradwatch_run_records_lost", "gpt"] == 6
    assert found["gradwatch_run_score", "gpt"] == 0.0


def test_only_so_many_runs_have_series_of_their_own(metrics: Any, peers: Any) -> None:
    """The others are in the sums."""
    peer = peers(metrics.service.ingest)
    for number in range(MAX_LABELLED_RUNS + 5):
        peer.session = (number + 1).to_bytes(16, "big")
        peer.greeting = Hello(run=f"run-{number}", rank=0, world=1)
        peer.greet()
    wanted = MAX_LABELLED_RUNS + 5
    while (found := metrics())["gradwatch_runs", "unknown"] < wanted:
        pass

    labelled = [label for name, label in found if name == "gradwatch_run_records_lost"]
    assert len(labelled) == MAX_LABELLED_RUNS
    assert f"run-{wanted - 1}" in labelled


@pytest.mark.slow
def test_each_rank_is_shown_with_what_it_lost(
    service: Any, peers: Any, wait_until: Any, make_stats: Any
) -> None:
    """Its session, and the ranges of numbers with the steps around them."""
    peer = peers(service.ingest, run="ranks", world=2).attach()
    peer.steps(0, 1.0)
    peer.seq += 3
    peer.send(make_stats(4, (1.0, 1.0)), low=peer.seq + 1)
    peer.acked()
    wait_until(lambda: service.json("/runs/ranks/ranks")["records"]["lost"] == 3)
    report = service.json("/runs/ranks/ranks")

    assert (report["run"], report["attempt"], report["world"]) == ("ranks", 1, 2)
    (rank,) = report["ranks"]
    assert (rank["rank"], rank["state"], rank["stored"], rank["lost"]) == (0, "alive", 3, 3)
    assert rank["session"] == blake2s(peer.session, digest_size=8).hexdigest()
    assert rank["gaps"] == [{"first": 3, "last": 5, "after_step": 0, "before_step": 4}]
    assert service.get("/runs/none/ranks").status_code == 404
