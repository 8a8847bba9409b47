"""The build's hook: first of all `vendor.py` gets what is not of this repository.

A build without it is told of, and goes on.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[BuilderConfig]):
    """Called by hatchling for a wheel, an sdist and an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Get the files."""
        command = [sys.executable, str(Path(__file__).with_name("vendor.py"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self.app.display_warning(done.stderr.strip())
