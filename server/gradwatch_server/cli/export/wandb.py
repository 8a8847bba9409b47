"""Exports to Weights & Biases: numbers of the run, alerts, and where the page is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gradwatch_server.cli.export.about import About
from gradwatch_server.cli.export.format import Sealed, library
from gradwatch_server.cli.export.page import Page
from gradwatch_server.cli.export.tags import PREFIX, epoch_folder, tagged
from gradwatch_server.errors import GradwatchError
from gradwatch_wire.columns import L2

PROJECT: Final = "gradwatch"
"""The project of runs that `WANDB_PROJECT` names none for."""

_ALERT_COLUMNS: Final = ("id", "rule", "severity", "state", "first_step", "message")


class WandB:
    """A run there, by the environment that wandb knows: `WANDB_MODE=offline` writes files only."""

    name: Final = "wandb"
    layers: Final = "none"
    columns: Final = (L2,)
    resumable: Final = False

    def check(self) -> None:
        """Make sure that wandb is there."""
        library("wandb", "wandb")

    def open(self, directory: Path, about: About, _: Sealed) -> WandBWriter:
        """Begin a run there."""
        return WandBWriter(directory, about)


class WandBWriter:
    """Logs by a step metric of our own: theirs may not go back, as steps of a training do."""

    def __init__(self, directory: Path, about: About) -> None:
        self._wandb, self._about = library("wandb", "wandb"), about
        try:
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=f"{about.run}-{about.attempt}",
                dir=directory,
                config={PREFIX: dict(about.facts)},
                notes=about.page,
                settings=self._wandb.Settings(
                    silent=True, console="off", disable_code=True, disable_git=True
                ),
            )
        except self._wandb.errors.Error as error:
            msg = f"wandb cannot begin a run: {error}; WANDB_MODE=offline needs no server"
            raise GradwatchError(msg) from error
        self._run.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")
        self._ended = False

    def add(self, page: Page) -> None:
        """Write a page, a row for each step."""
        series = tagged(page, self._about)
        folder = epoch_folder(self._about, page.epoch)
        for row, step in enumerate(page.steps.tolist()):
            found = {tag: value for own in series for tag, value in own.at(row)}
            if folder:
                found = {f"{tag}/{folder}": value for tag, value in found.items()}
            self._run.log({**found, f"{PREFIX}/step": step, f"{PREFIX}/epoch": page.epoch})

    def add_alerts(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Write the alerts as a table, each with its address on the page."""
        rows = [
            [*(own[name] for name in _ALERT_COLUMNS), f"{self._about.page}&alert={own['id']}"]
            for own in alerts
        ]
        table = self._wandb.Table(columns=[*_ALERT_COLUMNS, "page"], data=rows)
        self._run.log({f"{PREFIX}/alerts": table})
        self._run.summary[f"{PREFIX}/page"] = self._about.page

    def seal(self) -> Sealed:
        """End the run."""
        found = {
            "wandb": {"run": self._run.id, "url": None if self._run.offline else self._run.url}
        }
        self._run.finish()
        self._ended = True
        return {"links": found}

    def close(self) -> None:
        """End a run that is not complete as one that failed."""
        if not self._ended:
            self._run.finish(exit_code=1)
