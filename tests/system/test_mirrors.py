"""The examples of docs/trackers.md, run beside a real aggregator and read back by each tracker."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from torch import nn

import gradwatch
from gradwatch.integrations._series import SeriesError, SeriesReader
from gradwatch.integrations.tensorboard import TensorBoardMirror
from gradwatch_server.keys import make_keys, read_keys
from tests.support.aggregator import Aggregator
from tests.support.waiting import wait_until
from tests.support.wandb_file import read_records

pytestmark = pytest.mark.slow

EXAMPLES: Final = Path(__file__).parents[2] / "docs" / "examples"
STEPS: Final = range(40)
BAD_STEP: Final = 20


@dataclass(frozen=True)
class Mirrored:
    """What the examples left behind."""

    aggregator: Aggregator
    folder: Path

    def norms(self, tracker: str) -> list[float]:
        """Return the norm of each step as the aggregator knows it, NaN where it was."""
        path = f"/runs/mirror-{tracker}/series?column=norm&points=4096"
        (series,) = self.aggregator.json(path)["series"]
        nans = series.get("nan", [0] * len(series["last"]))
        pairs = zip(series["last"], nans, strict=True)
        return [math.nan if is_nan else last for last, is_nan in pairs]

    def page(self, tracker: str) -> str:
        return f"{self.aggregator.url}/?run=mirror-{tracker}"


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    """All three at once, each with its tracker on this machine."""
    folder = tmp_path_factory.mktemp("mirrored")
    aggregator = Aggregator(folder / "data")
    aggregator.start()
    environ = {
        "GRADWATCH_ENDPOINT": aggregator.ingest,
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),
        "OMP_NUM_THREADS": "1",
        "WANDB_DIR": str(folder),
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
    }
    examples = [
        subprocess.Popen(
            [sys.executable, EXAMPLES / f"mirror_{name}.py"],
            cwd=folder,
            env=os.environ | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("wandb", "tensorboard", "mlflow")
    ]
    for example in examples:
        output, _ = example.communicate()
        assert example.returncode == 0, output
        assert "gradwatch: " not in output, output  # no fault was told
    yield Mirrored(aggregator, folder)
    aggregator.close()


def same(found: list[float], wanted: list[float]) -> bool:
    """Tell whether numbers are those, in single precision, NaN in the same places."""
    return found == pytest.approx(wanted, rel=1e-6, nan_ok=True)


def test_tensorboard_shows_the_series_at_their_steps_and_the_alerts(mirrored: Mirrored) -> None:
    """Its own reader of event files says so."""
    from tensorboard.backend.event_processing import event_accumulator  # type: ignore[import-untyped]  # it ships no types

    everything = {"scalars": 0, "tensors": 0}
    events = event_accumulator.EventAccumulator(
        str(mirrored.folder / "runs"), size_guidance=everything
    )
    events.Reload()

    def texts(tag: str) -> list[tuple[int, str]]:
        found = events.Tensors(f"{tag}/text_summary")
        return [(own.step, own.tensor_proto.string_val[0].decode()) for own in found]

    norms = events.Scalars("gradwatch/gradient_norm")
    assert [own.step for own in norms] == list(STEPS)
    assert same([own.value for own in norms], mirrored.norms("tensorboard"))
    assert math.isnan(norms[BAD_STEP].value)
    assert events.Scalars("gradwatch/score")[BAD_STEP].value == 0
    assert len(events.Scalars("gradwatch/loss")) == len(STEPS)
    assert texts("gradwatch/run") == [
        (0, f"mirror-tensorboard: {mirrored.page('tensorboard')}"),
    ]
    fired, resolved = texts("gradwatch/alerts")
    assert fired[0] == BAD_STEP
    assert fired[1].startswith("**critical: nonfinite in mirror-tensorboard**: ")
    assert resolved[1].startswith("**resolved: nonfinite in mirror-tensorboard**: ")


def test_mlflow_has_the_series_as_metrics_and_the_alerts_as_tag_and_artifact(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own client says so, of a store of local files."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient
    from mlflow.artifacts import load_text

    client = MlflowClient(tracking_uri=(mirrored.folder / "mlruns").as_uri())
    (run,) = client.search_runs(["0"])
    norms = client.get_metric_history(run.info.run_id, "gradwatch/gradient_norm")
    alerts = load_text(f"{run.info.artifact_uri}/gradwatch/alerts.txt").splitlines()

    assert [own.step for own in norms] == list(STEPS)
    assert same([own.value for own in norms], mirrored.norms("mlflow"))
    assert run.data.tags["gradwatch.run"] == "mirror-mlflow"
    assert run.data.tags["gradwatch.url"] == mirrored.page("mlflow")
    assert [line.partition(":")[0] for line in alerts] == ["critical", "resolved"]
    assert run.data.tags["gradwatch.alert"] == alerts[-1]


def test_wandb_has_the_newest_steps_and_the_alerts(mirrored: Mirrored) -> None:
    """What its offline mode wrote, in its own protobuf; the training's own rows are untouched."""
    (file,) = mirrored.folder.glob("wandb/offline-run-*/run-*.wandb")
    rows: list[dict[str, Any]] = []
    alerts, config = [], {}
    for record in read_records(file):
        for item in record.config.update:
            config[item.key] = json.loads(item.value_json)
        if record.HasField("alert"):
            alerts.append((record.alert.title, record.alert.level))
        if record.HasField("history"):
            items = record.history.item
            rows.append({i.key or i.nested_key[0]: json.loads(i.value_json) for i in items})
    norms = mirrored.norms("wandb")
    mirrored_rows = [row for row in rows if "gradwatch/step" in row]

    assert [row["_step"] for row in rows if "loss" in row] == list(STEPS)
    assert mirrored_rows[-1]["gradwatch/step"] == STEPS[-1]
    for row in mirrored_rows:
        assert same([row["gradwatch/gradient_norm"]], [norms[row["gradwatch/step"]]])
    assert config["gradwatch_run"] == "mirror-wandb"
    assert config["gradwatch_url"] == mirrored.page("wandb")
    assert alerts == [
        ("critical: nonfinite in mirror-wandb", "ERROR"),
        ("resolved: nonfinite in mirror-wandb", "INFO"),
    ]


def test_nothing_is_linked_to_that_has_no_address(mirrored: Mirrored) -> None:
    """Offline, files, and a store of local files have none."""
    for tracker in ("wandb", "tensorboard", "mlflow"):
        assert mirrored.aggregator.json(f"/runs/mirror-{tracker}")["links"] == []


def runs(service: Aggregator) -> list[str]:
    """Return the names of all runs."""
    return [own["run"] for own in service.json("/runs")]


def test_a_run_links_to_that_of_its_tracker(mirrored: Mirrored, tmp_path: Path) -> None:
    """While it trains, before its first step."""
    writers = pytest.importorskip("tensorboardX")
    service = mirrored.aggregator
    link = {"name": "TensorBoard", "url": "http://127.0.0.1:6006/#timeseries"}
    with (
        writers.SummaryWriter(str(tmp_path)) as writer,
        TensorBoardMirror(writer, url=link["url"]) as mirror,
        gradwatch.attach(
            nn.Linear(2, 2), run="linked", endpoint=service.ingest, on_alert=mirror
        ) as watch,
    ):
        mirror.follow(watch)
        wait_until(lambda: "linked" in runs(service), "the run")
        wait_until(lambda: service.json("/runs/linked")["links"] == [link], "the link")
        assert service.json("/runs/linked")["step"] is None


def test_each_example_has_a_link() -> None:
    """From the page of its tracker."""
    page = (EXAMPLES.parent / "trackers.md").read_text("utf-8")

    for example in EXAMPLES.glob("mirror_*.py"):
        assert f"(examples/{example.name})" in page


def test_a_reader_gets_each_step_once_and_begins_again_with_an_attempt(
    mirrored: Mirrored, peers: Any
) -> None:
    """Also the numbers of a second attempt at the same steps, and at another address."""
    service = mirrored.aggregator
    peer = peers(service.ingest, run="again").attach()
    reader = SeriesReader(service.url, "again")
    assert reader.read() == {}
    first: dict[int, Any] = {}

    def has_two() -> bool:
        first.update(reader.read())
        return len(first) >= 2

    peer.steps(0, 3.0, math.inf)
    wait_until(has_two)
    peer.steps(2, 5.0)

    norm = "gradwatch/gradient_norm"
    assert {step: own[norm] for step, own in first.items()} == {
        0: pytest.approx(math.sqrt(10)),
        1: math.inf,
    }
    assert list(wait_until(reader.read)) == [2]
    reader.ask_at(service.url.replace("127.0.0.1", "localhost"))
    assert reader.read() == {}
    second = peers(service.ingest, run="again").attach()
    second.steps(0, 7.0)
    assert list(wait_until(reader.read)) == [0]


def test_an_aggregator_with_tokens_is_asked_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And without it is said which variable to set."""
    make_keys(tmp_path / "keys")
    token = read_keys(tmp_path / "keys").tokens.read
    service = Aggregator(tmp_path / "data", "--keys-dir", str(tmp_path / "keys"))
    service.start()
    with pytest.raises(SeriesError, match="set GRADWATCH_TOKEN to its read token"):
        SeriesReader(service.url, "unknown").read()
    monkeypatch.setenv("GRADWATCH_TOKEN", token)
    with pytest.raises(SeriesError, match="404"):
        SeriesReader(service.url, "unknown").read()
    service.close()
