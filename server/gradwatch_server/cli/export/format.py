"""Base of formats: each writes pages into a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from gradwatch_server.cli.export.about import About
from gradwatch_server.cli.export.page import Page
from gradwatch_server.errors import GradwatchError


class Writer(Protocol):
    """Writes one export. Any method may raise an OSError, which ends the export."""

    def add(self, page: Page) -> None:
        """Write a page."""

    def add_alerts(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Write the alerts, after all pages."""

    def close(self) -> None:
        """Close all files, whether all of it was written or not."""


class Format(Protocol):
    """One way of writing an export into a directory."""

    @property
    def name(self) -> str:
        """Name for `--to`, and the ending of the directory's name."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the layers that it writes if nothing is said."""

    def check(self) -> None:
        """Make sure that its library is there.

        Raises:
            GradwatchError: If it is not, with what to install.
        """

    def open(self, directory: Path, about: About) -> Writer:
        """Begin to write into an empty directory."""


def library(name: str, extra: str) -> ModuleType:
    """Import a library that an extra has.

    Raises:
        GradwatchError: If it is not there, with what to install.
    """
    try:
        return import_module(name)
    except ImportError as error:
        msg = f"this needs {name.partition('.')[0]}: pip install 'gradwatch[{extra}]'"
        raise GradwatchError(msg) from error
