"""Metrics sent by OTLP to a receiver that decodes them: no collector's binary is to be had."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gradwatch_server.api.metrics import cluster, notifications
from gradwatch_server.api.metrics.metric import Type
from gradwatch_server.api.metrics.otlp import UNITS
from gradwatch_server.api.metrics.table import METRICS
from gradwatch_server.errors import GradwatchError
from gradwatch_server.settings import load_settings
from tests.support.aggregator import GRADWATCH
from tests.support.collector import Collector
from tests.support.ports import ReservedPort
from tests.support.waiting import PATIENCE_S

SECRET = "Bearer%20s3cr3t-t0ken"


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def _environ(endpoint: str) -> dict[str, str]:
    return {
        "GRADWATCH_OTLP_ENDPOINT": endpoint,
        "GRADWATCH_OTLP_INTERVAL_S": "1",
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={SECRET}",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=lab",
    }


def test_the_collector_is_sent_what_prometheus_scrapes(
    serve: Any, peers: Any, wait_until: Any, collector: Collector
) -> None:
    """The whole table, with the same labels and values; the library leaves out NaN and Inf."""
    service = serve(**_environ(f"{collector.url}/base/"))
    peer = peers(service.ingest, run="sent").attach()
    peer.send_frames(b"\x01", b"nonsense")
    for step in range(40):
        norm = 1.0 if step == 0 else float("nan")
        peer.stats(step, (1.0, norm), loss=1.5, lr=0.1, step_time_s=0.5)
    peer.acked()
    service.shows(peer)
    of_run = frozenset({("run", "sent")})
    wait_until(lambda: collector.points.get(("gradwatch_run_step", of_run)) == 39)
    points = collector.points
    scraped = {
        (sample.name.removesuffix("_total"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(service.get("/metrics").text)
        for sample in family.samples
        if not sample.name.endswith("_bucket") and math.isfinite(sample.value)
    }
    settled = ("gradwatch_run", "gradwatch_records", "gradwatch_stored", "gradwatch_budget_limit")

    assert points.keys() == scraped.keys()
    for key in points:
        assert points[key] == scraped[key] or not key[0].startswith(settled), key
    assert points["gradwatch_run_nonfinite_steps", of_run] == 39
    about = collector.metrics
    # No target is set, and it is no node.
    absent = (*notifications.METRICS, *cluster.METRICS)
    for metric in (own for own in METRICS if own not in absent):
        kind = "sum" if metric.type is Type.COUNTER else "gauge"
        if metric.type is not Type.HISTOGRAM and metric.name != "gradwatch_run_gradient_norm":
            name = metric.name.removesuffix("_total")
            assert about[name] == (kind, UNITS[metric.unit], metric.what)
    assert set(collector.paths) == {"/base/v1/metrics"}
    assert {own["authorization"] for own in collector.headers} == {"Bearer s3cr3t-t0ken"}
    assert collector.resource["service.name"] == "gradwatch"
    assert len(collector.resource["service.instance.id"]) == 36
    assert collector.resource["deployment.environment"] == "lab"
    before = len(collector.requests)
    assert service.stop() == 0
    assert len(collector.requests) > before  # the last values, at the end
    assert "s3cr3t" not in service.errors


def test_a_collector_that_is_gone_is_told_of_once_and_one_that_comes_is_found(
    serve: Any, wait_until: Any
) -> None:
    """The aggregator is none the worse for it."""
    port = ReservedPort()
    service = serve(**_environ(f"http://127.0.0.1:{port.number}"))
    wait_until(lambda: "OTLP" in service.errors)
    port.close()
    collector = Collector(port.number)
    wait_until(lambda: collector.requests)
    wait_until(lambda: "OTLP: metrics reach" in service.errors)
    told = [line for line in service.errors.splitlines() if "OTLP" in line]
    assert service.get("/readyz").is_success
    assert service.stop() == 0
    collector.close()

    assert len(told) == 2
    assert told[0].endswith(
        f"OTLP: metrics do not reach http://127.0.0.1:{port.number}: nobody answers there"
    )
    assert len(service.errors.splitlines()) == 2


def test_a_collector_that_refuses_is_told_of_with_its_status(serve: Any, wait_until: Any) -> None:
    """Once, however often it does."""
    collector = Collector(status=401)
    service = serve(**_environ(collector.url))
    wait_until(lambda: len(collector.requests) >= 3)
    assert service.stop() == 0
    collector.close()

    (line,) = service.errors.splitlines()
    assert line.endswith(f"OTLP: metrics do not reach {collector.url}: it answers 401")


def test_a_collector_that_hangs_holds_nobody_up(serve: Any, peers: Any, wait_until: Any) -> None:
    """Neither a training, nor a reader, nor the end of the process."""
    collector = Collector(status=None)
    service = serve(**_environ(collector.url))
    wait_until(lambda: collector.requests)
    peer = peers(service.ingest).attach()
    peer.steps(0, 1.0)
    service.shows(peer)

    assert "gradwatch_run_step" in service.get("/metrics").text
    assert service.stop() == 0
    collector.close()


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("localhost:4318", "setting 'otlp_endpoint': not an address such as"),
        ("ftp://localhost", "setting 'otlp_endpoint': not an address such as"),
        ("http://[s3cr3t", "setting 'otlp_endpoint': not an address such as"),
        ("http://a:s3cr3t@b", "setting 'otlp_endpoint': only host, port and path"),
        ("http://b?key=s3cr3t", "setting 'otlp_endpoint': only host, port and path"),
    ],
)
def test_a_wrong_address_is_refused_without_being_shown(endpoint: str, says: str) -> None:
    """A password may be in it."""
    with pytest.raises(GradwatchError) as caught:
        load_settings(None, otlp_endpoint=endpoint)

    assert says in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.slow
def test_malformed_headers_are_refused_at_the_start_without_being_shown(tmp_path: Path) -> None:
    """The library would log them, and go on without."""
    line = _refused(tmp_path, {"OTEL_EXPORTER_OTLP_HEADERS": "Bearer s3cr3t"})

    assert "OTEL_EXPORTER_OTLP_HEADERS is not like name=value" in line
    assert "s3cr3t" not in line


@pytest.mark.slow
def test_a_missing_library_is_said_at_the_start_with_how_to_get_it(tmp_path: Path) -> None:
    """Instead of a traceback, or of metrics that never come."""
    (tmp_path / "without").mkdir()
    gone = "raise ModuleNotFoundError(\"No module named 'requests'\", name='requests')\n"
    (tmp_path / "without" / "requests.py").write_text(gone)
    path = os.pathsep.join((str(tmp_path / "without"), os.environ.get("PYTHONPATH", "")))
    line = _refused(tmp_path, {"PYTHONPATH": path})

    assert line.endswith("run: pip install 'gradwatch[otlp]'")


def _refused(folder: Path, environ: dict[str, str]) -> str:
    """Return the one line of a start that fails."""
    done = subprocess.run(
        [GRADWATCH, "serve", "--http", "127.0.0.1:0", "--ingest", "tcp://127.0.0.1:0"],
        cwd=folder,
        env=os.environ | {"GRADWATCH_OTLP_ENDPOINT": "http://127.0.0.1:1"} | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    return line
