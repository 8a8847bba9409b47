"""Exports to MLflow: numbers of the run, alerts, and where the page is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gradwatch_server.cli.export.about import About
from gradwatch_server.cli.export.format import Sealed, library
from gradwatch_server.cli.export.page import Page
from gradwatch_server.cli.export.part import PART
from gradwatch_server.cli.export.tags import PREFIX, epoch_folder, tagged
from gradwatch_server.errors import GradwatchError
from gradwatch_wire.columns import L2

EXPERIMENT: Final = "gradwatch"
"""The experiment of runs that `MLFLOW_EXPERIMENT_NAME` names none for."""

MAX_ALERTS: Final = 100

MAX_TAG: Final = 5_000
"""Characters of a tag at most, as MLflow says."""

MAX_METRICS: Final = 1_000
"""Metrics of one batch at most, as MLflow says."""


class MLflow:
    """A run at `MLFLOW_TRACKING_URI`, without it in a local store in the directory."""

    name: Final = "mlflow"
    layers: Final = "none"
    columns: Final = (L2,)
    resumable: Final = False

    def check(self) -> None:
        """Make sure that mlflow is there."""
        library("mlflow.tracking", "mlflow")

    def open(self, directory: Path, about: About, _: Sealed) -> MLflowWriter:
        """Begin a run there."""
        return MLflowWriter(directory, about)


class MLflowWriter:
    """Logs metrics in batches."""

    def __init__(self, directory: Path, about: About) -> None:
        self._about = about
        self._metric = library("mlflow.entities", "mlflow").Metric
        asked = os.environ.get("MLFLOW_TRACKING_URI")
        uri = asked or _local_store(directory)
        # The directory will have another name, and a run says where its artifacts are.
        final = directory.resolve().with_name(directory.name.removesuffix(PART))
        self._artifacts = None if asked else (final / "artifacts").as_uri()
        errors = library("mlflow.exceptions", "mlflow")
        try:
            self._client = library("mlflow.tracking", "mlflow").MlflowClient(uri)
            self._id = self._begin()
        except errors.MlflowException as error:
            msg = f"MLflow cannot begin a run at {uri}: {error}"
            raise GradwatchError(msg) from error
        self._batch: list[Any] = []
        self._ended = False

    def _begin(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        if found is None:
            experiment = self._client.create_experiment(name, self._artifacts)
        else:
            experiment = found.experiment_id
        about = self._about
        tags = {
            "mlflow.runName": f"{about.run}-{about.attempt}",
            "mlflow.note.content": f"exported from [gradwatch]({about.page})",
            f"{PREFIX}.page": about.page,
            f"{PREFIX}.run": about.run,
            f"{PREFIX}.attempt": str(about.attempt),
        }
        return str(self._client.create_run(experiment, tags=tags).info.run_id)

    def add(self, page: Page) -> None:
        """Write a page."""
        series = tagged(page, self._about)
        folder = epoch_folder(self._about, page.epoch)
        times_ms = (page.times_ns // 1_000_000).tolist()
        for row, step in enumerate(page.steps.tolist()):
            for own in series:
                for tag, value in own.at(row):
                    key = _key(f"{tag}/{folder}" if folder else tag)
                    self._batch.append(self._metric(key, value, times_ms[row], step))
                    if len(self._batch) == MAX_METRICS:
                        self._send()

    def _send(self) -> None:
        if self._batch:
            self._client.log_batch(self._id, metrics=self._batch)
        self._batch = []

    def add_alerts(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Write the newest alerts as tags of the run, and how many there are."""
        self._client.set_tag(self._id, f"{PREFIX}.alerts", str(len(alerts)))
        for own in alerts[-MAX_ALERTS:]:
            text = f"{own['severity']}: {own['message']} {self._about.page}&alert={own['id']}"
            self._client.set_tag(self._id, f"{PREFIX}.alert.{own['id']}", text[:MAX_TAG])

    def seal(self) -> Sealed:
        """End the run."""
        self._send()
        self._client.set_terminated(self._id)
        self._ended = True
        return {"links": {"mlflow": {"run": self._id}}}

    def close(self) -> None:
        """End a run that is not complete as one that failed."""
        if not self._ended:
            self._client.set_terminated(self._id, "FAILED")


def _local_store(directory: Path) -> str:
    """Return the address of a store of files, which needs nothing else but must be allowed."""
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return (directory / "mlruns").resolve().as_uri()


def _key(tag: str) -> str:
    """Return a tag in the characters that MLflow allows."""
    return re.sub(r"[^\w.\-/ :]", "_", tag)
