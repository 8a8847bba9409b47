"""The examples of docs/trackers.md, run beside a real aggregator and read back by each tracker."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from gradwatch.integrations import mirror as own
from gradwatch.integrations.mirror import Mirror
from gradwatch_server.keys import make_keys, read_keys
from tests.support.aggregator import Aggregator
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

EXAMPLES: Final = Path(__file__).parents[2] / "docs" / "examples"
STEPS: Final = range(40)
BAD_STEP: Final = 20


@dataclass(frozen=True)
class Mirrored:
    """Files that the examples left behind."""

    aggregator: Aggregator
    folder: Path

    def norms(self, tracker: str) -> list[float]:
        """Return the norm of each step as the aggregator knows it, NaN where it was."""
        path = f"/runs/mirror-{tracker}/series?column=norm&points=4096"
        (series,) = self.aggregator.json(path)["series"]
        nans = series.get("nan", [0] * len(series["last"]))
        pairs = zip(series["last"], nans, strict=True)
        return [math.nan if is_nan else last for last, is_nan in pairs]


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
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


@dataclass(frozen=True)
class Followed:
    """As much of a watch as a mirror asks for."""

    run: str
    http_url: str

    def __exit__(self, *_: object) -> None:
        """Nothing is to be closed."""


def same(found: list[float], wanted: list[float]) -> bool:
    """Tell whether numbers are those, in single precision, NaN in the same places."""
    return found == pytest.approx(wanted, rel=1e-6, nan_ok=True)


@pytest.mark.exhaustive
def test_tensorboard_shows_the_steps_with_their_layers_and_the_alerts(mirrored: Mirrored) -> None:
    from tensorboard.backend.event_processing import event_accumulator  # type: ignore[import-untyped]  # it ships no types

    events = event_accumulator.EventAccumulator(
        str(mirrored.folder / "runs"), size_guidance={"scalars": 0}
    )
    events.Reload()

    norms = events.Scalars("gradwatch/gradient_norm")
    assert [norm.step for norm in norms] == list(STEPS)
    assert same([norm.value for norm in norms], mirrored.norms("tensorboard"))
    assert math.isnan(norms[BAD_STEP].value)
    assert events.Scalars("gradwatch/score")[BAD_STEP].value == 0
    assert len(events.Scalars("gradwatch/loss")) == len(STEPS)
    for layer in ("0.weight", "2.weight"):
        assert [own.step for own in events.Scalars(f"gradwatch/l2/{layer}")] == list(STEPS)
    alerts = [(own.step, own.value) for own in events.Scalars("gradwatch/alerts/nonfinite")]
    assert alerts[0] == (BAD_STEP, 1)
    assert alerts[-1][0] > BAD_STEP
    assert alerts[-1][1] == 0


@pytest.mark.exhaustive
def test_mlflow_has_the_steps_as_metrics_and_the_alerts(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(mirrored.folder / "mlruns").as_uri())
    (run,) = client.search_runs(["0"])
    norms = client.get_metric_history(run.info.run_id, "gradwatch/gradient_norm")
    alerts = client.get_metric_history(run.info.run_id, "gradwatch/alerts/nonfinite")

    assert [norm.step for norm in norms] == list(STEPS)
    assert same([norm.value for norm in norms], mirrored.norms("mlflow"))
    assert (alerts[0].step, alerts[0].value, alerts[-1].value) == (BAD_STEP, 1, 0)


@pytest.mark.exhaustive
def test_wandb_has_the_steps_and_the_alerts_beside_the_rows_of_the_training(
    mirrored: Mirrored,
) -> None:
    (file,) = mirrored.folder.glob("wandb/offline-run-*/run-*.wandb")
    rows: list[dict[str, Any]] = []
    for record in read_records(file):
        if record.HasField("history"):
            items = record.history.item
            rows.append({i.key or i.nested_key[0]: json.loads(i.value_json) for i in items})
    norms = {
        row["gradwatch/step"]: row["gradwatch/gradient_norm"]
        for row in rows
        if "gradwatch/gradient_norm" in row
    }
    of_alerts = "gradwatch/alerts/nonfinite"
    alerts = [row[of_alerts] for row in rows if of_alerts in row]

    assert sum("loss" in row for row in rows) == len(STEPS)
    assert list(norms) == list(STEPS)
    assert same(list(norms.values()), mirrored.norms("wandb"))
    assert (alerts[0], alerts[-1]) == (1, 0)


def test_each_example_has_a_link() -> None:
    page = (EXAMPLES.parent / "trackers.md").read_text("utf-8")

    for example in EXAMPLES.glob("mirror_*.py"):
        assert f"(examples/{example.name})" in page


@pytest.mark.exhaustive
def test_each_step_comes_once_and_again_with_an_attempt(mirrored: Mirrored) -> None:
    service = mirrored.aggregator
    peer = service.peer(run="again").attach()
    steps: list[tuple[int, float]] = []
    norm = "gradwatch/gradient_norm"
    watch: Any = Followed("again", service.url)
    with Mirror(
        watch,
        lambda own, step: steps.append((step, own[norm])) if norm in own else None,
        every_s=0.05,
    ):
        peer.steps(0, 3.0, math.inf)
        wait_until(lambda: len(steps) == 2)
        peer.steps(2, 5.0)  # not waited for: it comes before the attempt that follows
        second = service.peer(run="again").attach()
        second.steps(0, 7.0)
        wait_until(lambda: len(steps) == 4)

    assert [step for step, _ in steps] == [0, 1, 2, 0]
    assert steps[0][1] == pytest.approx(math.sqrt(10))
    assert steps[1][1] == math.inf


def test_an_aggregator_with_tokens_is_asked_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_keys(tmp_path / "keys")
    token = read_keys(tmp_path / "keys").tokens.read
    service = Aggregator(tmp_path / "data", "--keys-dir", str(tmp_path / "keys"))
    service.start()
    mirrors = []
    monkeypatch.setattr(own, "UNKNOWN_S", 0.1)
    for said in ("set GRADWATCH_TOKEN to the aggregator's read token", "404"):
        watch: Any = Followed("unknown", service.url)
        mirrors.append(Mirror(watch, lambda _numbers, _step: None, every_s=0.05))
        _wait_for(caplog, said)
        monkeypatch.setenv("GRADWATCH_TOKEN", token)
    for mirror in mirrors:
        mirror.__exit__(None, None, None)
    service.close()


def _wait_for(caplog: pytest.LogCaptureFixture, text: str) -> None:
    wait_until(lambda: text in caplog.text, text)


HEADER_BYTES: Final = 7
"""Of the file: `:W&B`, a magic number and a version."""

BLOCK_BYTES: Final = 32_768
_CHUNK: Final = struct.Struct("<IHB")  # checksum, length, kind
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def read_records(path: Path) -> Iterator[Any]:
    """Yield the records of a `.wandb` file."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # generated

    for data in _chunks(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        yield record


def _chunks(data: bytes) -> Iterator[bytes]:
    assert data.startswith(b":W&B"), data[:16]
    place, parts = HEADER_BYTES, b""
    while place + _CHUNK.size <= len(data):
        room = BLOCK_BYTES - place % BLOCK_BYTES
        if room < _CHUNK.size:  # the rest of a block is left empty
            place += room
            continue
        _, length, kind = _CHUNK.unpack_from(data, place)
        place += _CHUNK.size
        parts += data[place : place + length]
        place += length
        if kind in (_FULL, _LAST):
            yield parts
            parts = b""
