"""Base of formats: each writes the pages of an export into a directory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from gradwatch_server.cli.export.about import About
from gradwatch_server.cli.export.page import Page
from gradwatch_server.core.frames.rows import FRAME_COLUMNS
from gradwatch_server.errors import GradwatchError


class Format(ABC):
    """Files of one export in an empty directory. An OSError of any method ends the export.

    Attributes:
        name: Name for `--to`, and the ending of the directory's name.
        columns: Columns of the layers that it writes by default.
        needs: Module that the extra of the format's name installs, empty for none.
    """

    name: ClassVar[str]
    columns: ClassVar[Sequence[str]] = FRAME_COLUMNS
    needs: ClassVar[str] = ""

    def __init__(self, directory: Path, about: About) -> None:
        self._directory, self._about = directory, about

    @classmethod
    def check(cls) -> None:
        """Raise GradwatchError, with what to install, if the module that it needs is missing."""
        if cls.needs:
            library(cls.needs, cls.name)

    @abstractmethod
    def add(self, page: Page) -> None:
        """Write a page."""

    @abstractmethod
    def add_alerts(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Write the alerts, after all pages."""

    @abstractmethod
    def close(self) -> None:
        """Close all files, whether all of it was written or not."""


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
