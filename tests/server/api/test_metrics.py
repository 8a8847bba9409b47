"""`/metrics` and `/runs/{run}/ranks` of a real process."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from hashlib import blake2s
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gradwatch_server.api.metrics.definitions import METRICS
from gradwatch_server.budgets import BUDGETS
from gradwatch_wire import Bye, Event
from tests.support.aggregator import Aggregator, Serve
from tests.support.programs import program
from tests.support.records import stats_of
from tests.support.waiting import PATIENCE_S, wait_until

DOCS = Path(__file__).parents[3] / "docs"


def event(step: int) -> Event:
    return Event(name="mark", step=step)


class Metrics:
    """The metrics of an aggregator: name and value of the one label, `""` without, to number."""

    def __init__(self, service: Aggregator) -> None:
        self.service = service

    def __call__(self) -> dict[tuple[str, str], float]:
        answer = self.service.get("/metrics").raise_for_status()
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return {
            (sample.name, "".join(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }


@pytest.fixture
def metrics(serve: Serve) -> Metrics:
    return Metrics(serve())


def test_records_are_counted_by_what_became_of_them(metrics: Metrics) -> None:
    peer = metrics.service.peer().attach()
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


def test_what_is_refused_is_counted_by_kind(metrics: Metrics) -> None:
    """Kinds are ours, so that no peer can add series."""
    peer = metrics.service.peer(run="a b")
    peer.say(peer.greeting)
    peer.send_raw(b"\x01nonsense")
    wait_until(lambda: metrics().get(("gradwatch_refused_total", "malformed")))

    assert metrics()["gradwatch_refused_total", "run name"] == 1


def test_every_budget_is_there_with_its_limit(serve: Serve) -> None:
    service = serve(GRADWATCH_BUDGETS__RUNS="7")
    families = text_string_to_metric_families(service.get("/metrics").text)
    found = {(s.name, s.labels.get("budget")): s.value for f in families for s in f.samples}
    names = {budget.name for budget in BUDGETS}

    assert found["gradwatch_budget_limit", "runs"] == 7
    for metric in ("limit", "evicted_total", "refused_total"):
        own = {label for name, label in found if name == f"gradwatch_budget_{metric}"}
        assert own == names, metric


def test_runs_ranks_and_alerts_are_counted_by_state(metrics: Metrics) -> None:
    peer = metrics.service.peer().attach()
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
    assert found["gradwatch_run_score", "gpt"] == 0.0


@pytest.mark.slow
def test_a_run_has_numbers_of_its_own(service: Aggregator) -> None:
    peer = service.peer(run="own").attach()
    for step in range(3):
        peer.stats(step, (3.0, 4.0), loss=2.5, lr=0.125, step_time_s=0.5)
    peer.stats(3, (3.0, float("nan")), loss=2.5, lr=0.125, step_time_s=0.5)
    peer.seq += 2
    peer.send(stats_of(4, (6.0, 8.0), loss=2.25, lr=0.25, step_time_s=0.75), low=peer.seq + 1)
    peer.acked()
    wait_until(lambda: _of_run(service, "own").get("gradwatch_run_step") == 4)
    found = _of_run(service, "own")

    numbers = {
        "gradient_norm": 10.0,
        "nonfinite_steps": 1,
        "loss": 2.25,
        "learning_rate": 0.25,
        "step_time_seconds": 0.75,
        "attempt": 1,
        "score": 1.0,
        "lowest_score": 0.0,
        "records_total stored": peer.seq - 2,
        "records_total lost": 2,
        "status critical": 1,
        "status healthy": 0,
        "phase running": 1,
        "phase ended": 0,
        "ranks alive": 1,
        "ranks lost": 0,
        "alerts_firing critical": 1,
        "alerts_firing info": 0,
        "rule_alerts_firing nonfinite critical": 1,
    }
    assert {key: found[f"gradwatch_run_{key}"] for key in numbers} == numbers
    age_s = time.time() - found["gradwatch_run_last_record_timestamp_seconds"]
    assert -1 < age_s < PATIENCE_S


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "shown"), [("nan", "NaN"), ("inf", "+Inf")])
def test_what_is_not_finite_is_written_as_prometheus_does(
    service: Aggregator, norm: str, shown: str
) -> None:
    peer = service.peer(run=norm).attach()
    peer.steps(0, float(norm))
    line = f'gradwatch_run_gradient_norm{{run="{norm}"}} {shown}\n'
    wait_until(lambda: line in service.get("/metrics").text)

    assert "gradwatch_run_loss" not in _of_run(service, norm)


def _of_run(service: Any, run: str) -> dict[str, float]:
    """Return the metrics of a run: name and other labels to number."""
    return {
        " ".join([sample.name, *(v for k, v in sample.labels.items() if k != "run")]): sample.value
        for family in text_string_to_metric_families(service.get("/metrics").text)
        for sample in family.samples
        if sample.labels.get("run") == run
    }


def test_only_so_many_runs_have_numbers_of_their_own(serve: Serve) -> None:
    service = serve()
    made = [service.peer(run=f"run-{number}").attach() for number in range(52)]
    for peer in made[:2]:
        peer.send(Bye())
        peer.acked()
    for peer in made:
        service.shows(peer)

    def labelled() -> set[str]:
        families = text_string_to_metric_families(service.get("/metrics").text)
        return {s.labels["run"] for f in families for s in f.samples if "run" in s.labels}

    wait_until(lambda: labelled() == {f"run-{number}" for number in range(2, 52)})
    wait_until(lambda: "\ngradwatch_runs_left_out 2.0\n" in service.get("/metrics").text)


@pytest.mark.slow
def test_what_is_scraped_is_what_is_documented(service: Aggregator) -> None:
    peer = service.peer(run="whole").attach()
    peer.send_raw(b"\x01nonsense")
    for step in range(40):
        peer.stats(step, (1.0, float("nan")), loss=1.0, lr=0.1, step_time_s=0.5)
    peer.acked()
    service.shows(peer)
    text = service.get("/metrics").text
    types = dict(re.findall(r"^# TYPE (gradwatch_\S+) (\w+)$", text, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (gradwatch_\S+) (.+)$", text, re.MULTILINE))
    samples = {
        (s.name.removesuffix("_bucket"), frozenset(s.labels) - {"le"})
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.name.startswith("gradwatch_") and not s.name.endswith(("_count", "_sum"))
    }

    assert types == {own.name: own.type for own in METRICS}
    assert helps == {own.name: own.what for own in METRICS}
    # No target is set, and it is no node.
    there = {own for own in METRICS if "target" not in own.labels}
    assert samples == {(own.name, frozenset(own.labels)) for own in there}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is of Linux")
def test_the_process_has_the_metrics_of_every_client(metrics: Metrics) -> None:
    named = re.findall(r"`(process_\w+)`", (DOCS / "metrics.md").read_text("utf-8"))

    assert sorted(name for name, _ in metrics() if name.startswith("process_")) == sorted(named)


@pytest.mark.slow
def test_prometheus_has_nothing_to_complain_of(service: Aggregator) -> None:
    """Names, units, types and help, by its own linter."""
    promtool = program("promtool", "prometheus")
    service.peer(run="linted").attach().steps(0, 1.0)
    text = service.get("/metrics").text
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_each_rank_is_shown_with_what_it_lost(service: Aggregator) -> None:
    peer = service.peer(run="ranks", world=2).attach()
    peer.steps(0, 1.0)
    peer.seq += 3
    peer.send(stats_of(4, (1.0, 1.0)), low=peer.seq + 1)
    peer.acked()
    wait_until(lambda: service.json("/runs/ranks/ranks")["records"]["lost"] == 3)
    report = service.json("/runs/ranks/ranks")

    assert (report["run"], report["attempt"], report["world"]) == ("ranks", 1, 2)
    (rank,) = report["ranks"]
    assert (rank["rank"], rank["state"], rank["stored"], rank["lost"]) == (0, "alive", 3, 3)
    assert rank["session"] == blake2s(peer.session, digest_size=8).hexdigest()
    assert rank["gaps"] == [{"first": 3, "last": 5, "after_step": 0, "before_step": 4}]
    assert service.get("/runs/none/ranks").status_code == 404
