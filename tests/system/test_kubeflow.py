"""Status of a Kubeflow TrainJob: posted by rank 0 to a server that asks as the controller does."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import gradwatch
from gradwatch._faults import Faults
from gradwatch._transport import kubeflow
from gradwatch._transport.kubeflow import AFTER_ERROR_S, EVERY_S, KubeflowStatus, find_kubeflow
from gradwatch_wire import Stats
from gradwatch_wire.names import Scalar
from tests.support.aggregator import Aggregator
from tests.support.certificate import make_certificate
from tests.support.waiting import wait_until


class Controller(BaseHTTPRequestHandler):
    """Takes statuses over TLS, with the token of a service account."""

    posts: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        known = self.headers["Authorization"] == "Bearer of the pod"
        if known:
            self.posts.append(json.loads(body)["trainerStatus"])
        self.send_response(200 if known else 401)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def posts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    cert, key = make_certificate(tmp_path).values()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    (tmp_path / "token").write_text("of the pod\n")
    Controller.posts = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Controller) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", f"https://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_CA_CERT", cert)
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", str(tmp_path / "token"))
        yield Controller.posts
        server.shutdown()
        serving.join()


def train(endpoint: str, until: Any, **settings: Any) -> dict[str, Any]:
    """Train, with a loss of NaN from step 60 on, until something is so."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with gradwatch.attach(
        model, optimizer, run="kubeflow", endpoint=endpoint, every=1, **settings
    ) as watch:

        def is_done() -> bool:
            loss = model(torch.ones(2, 4)).pow(2).mean()
            (loss * torch.nan if int(watch.stats()["collected"]) >= 60 else loss).backward()
            watch.annotate(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            return bool(until())

        wait_until(is_done, "the status")
        return watch.stats()


@pytest.mark.slow
def test_progress_loss_and_the_newest_alert_are_posted(
    posts: list[dict[str, Any]], aggregator: Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubeflow, "EVERY_S", 0.1)
    aggregator.start()

    train(
        aggregator.ingest,
        lambda: (
            posts and any(metric["name"] == "gradwatch_alert" for metric in posts[-1]["metrics"])
        ),
        total_steps=1_000_000,
    )

    metrics = {metric["name"]: metric["value"] for metric in posts[-1]["metrics"]}
    assert metrics["gradwatch_alert"].startswith("firing: NaN gradient since step ")
    assert int(metrics["step"]) > 0
    assert float(metrics["loss"]) >= 0 or metrics["loss"] == "nan"
    assert posts[-1]["progressPercentage"] == 0
    assert posts[-1]["estimatedRemainingSeconds"] > 0


@pytest.mark.slow
def test_a_controller_that_hangs_or_refuses_costs_a_count(
    posts: list[dict[str, Any]], aggregator: Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregator.start()
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", url)
        began = time.monotonic()
        stats = train(aggregator.ingest, lambda: time.monotonic() - began > 4)

    assert stats["faults"] == 1
    assert wait_until(lambda: aggregator.health("kubeflow")["records"]["stored"], "records") > 100
    assert posts == []


def stats(step: int, loss: float) -> Stats:
    return Stats(step=step, manifest_id=1, columns={}, scalars={Scalar.LOSS: loss})


def test_posts_have_their_distance_and_more_after_an_error(posts: list[dict[str, Any]]) -> None:
    faults = Faults()
    status = find_kubeflow(0, 200, faults)
    assert status is not None
    for step in range(100):  # half a second each
        status.record(stats(step, 0.25), step / 2)
        status.post(step / 2)

    assert len(posts) == 50 / EVERY_S
    assert [post["progressPercentage"] for post in posts[:3]] == [0, 5, 10]
    assert posts[1]["estimatedRemainingSeconds"] == 95
    assert posts[1]["metrics"] == [
        {"name": "step", "value": "10"},
        {"name": "loss", "value": "0.25"},
    ]
    status.record(stats(300, 0.25), 150.0)
    status.post(150.0)
    assert posts[-1]["progressPercentage"] == 99
    num_posts = len(posts)
    status.post(300.0)
    assert len(posts) == num_posts, "without news nothing is posted"

    nobody = KubeflowStatus("http://127.0.0.1:9", None, faults)
    nobody.record(stats(1, 0.5), 0.0)
    for now_s in range(round(2 * AFTER_ERROR_S)):
        nobody.record(stats(now_s, 0.5), float(now_s))
        nobody.post(float(now_s))
    assert faults.counts["kubeflow"] == 2


@pytest.mark.parametrize(
    ("rank", "total_steps", "changed"),
    [
        (1, None, {}),
        (0, 0, {}),
        (0, None, {"DISABLE_KUBEFLOW_INTEGRATION": "true"}),
        (0, None, {"KUBEFLOW_TRAINER_SERVER_URL": "file:///etc/passwd"}),
        (0, None, {"KUBEFLOW_TRAINER_SERVER_URL": ""}),
    ],
)
def test_nobody_else_keeps_a_status(
    rank: int, total_steps: int | None, changed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", "http://127.0.0.1:9")
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    assert find_kubeflow(rank, total_steps, Faults()) is None
