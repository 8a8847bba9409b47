"""Where a tracker's run is seen, as its own library knows it; nothing is guessed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gradwatch.integrations import tensorboard, wandb

RUN_ID = "0123456789abcdef0123456789abcdef"


def test_tensorboard_has_the_address_that_it_is_given(tmp_path: Path) -> None:
    writers = pytest.importorskip("tensorboardX")
    with writers.SummaryWriter(str(tmp_path)) as writer:
        with tensorboard.TensorBoardMirror(writer, url="http://127.0.0.1:6006") as mirror:
            assert mirror._tracker.url() == "http://127.0.0.1:6006"
        with tensorboard.TensorBoardMirror(writer) as mirror:
            assert mirror._tracker.url() is None


class _Mlflow(BaseHTTPRequestHandler):
    """As much of MLflow's REST interface as tells of a run: its server is not among the tests."""

    def do_GET(self) -> None:
        answer = {"run": {"info": {"run_id": RUN_ID, "experiment_id": "42"}}}
        path, _, query = self.path.partition("?")
        is_known = path == "/mlflow/api/2.0/mlflow/runs/get" and f"run_id={RUN_ID}" in query
        self.send_response(200 if is_known else 404)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Keep quiet."""


@pytest.fixture
def mlflow_server() -> Iterator[str]:
    """Host and path where MLflow's client is answered."""
    pytest.importorskip("mlflow")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Mlflow) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}/mlflow"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("credentials", ["", "me:secret@"])
def test_mlflow_has_a_page_of_the_run_where_a_server_is_tracking(
    mlflow_server: str, credentials: str
) -> None:
    """Its own client asks for the experiment; a password in the address is left out."""
    from mlflow import MlflowClient

    from gradwatch.integrations import mlflow

    client = MlflowClient(tracking_uri=f"http://{credentials}{mlflow_server}/")
    url = mlflow._Tracker(client, RUN_ID).url()

    assert url == f"http://{mlflow_server}/#/experiments/42/runs/{RUN_ID}"


def test_mlflow_has_none_in_a_store_without_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    from gradwatch.integrations import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())

    assert mlflow._Tracker(client, RUN_ID).url() is None


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_wandb_has_none_without_its_server(tmp_path: Path, capfd: Any, mode: str) -> None:
    """And says nothing of it, which the training would show."""
    library = pytest.importorskip("wandb")
    settings = library.Settings(silent=True)
    with library.init(project="p", mode=mode, dir=tmp_path, settings=settings) as run:
        capfd.readouterr()
        assert wandb._Tracker(run).url() is None
        assert capfd.readouterr().err == ""


def test_wandb_knows_the_address_of_a_run_on_its_server(tmp_path: Path) -> None:
    """As W&B makes it of its settings; what stands behind a question mark may be a key."""
    library = pytest.importorskip("wandb")
    where = {"base_url": "https://wandb.example", "entity": "team", "project": "p"}
    settings = library.Settings(**where, run_id="r1", mode="online", root_dir=str(tmp_path))
    run = library.sdk.wandb_run.Run(settings)

    assert wandb._Tracker(run).url() == "https://wandb.example/team/p/runs/r1"
