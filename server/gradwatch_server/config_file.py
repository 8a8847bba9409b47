"""Settings file that is read: `--config`, else `GRADWATCH_CONFIG`, else the usual one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from gradwatch_server.errors import GradwatchError

DEFAULT_CONFIG: Final = Path("gradwatch.toml")
"""In the working directory; it need not be there."""

CONFIG_VARIABLE: Final = "GRADWATCH_CONFIG"


def find_config(given: Path | None) -> Path | None:
    """Return the settings file of the command line, else of the environment; None if none is named.

    Raises:
        GradwatchError: If one is named and is not there.
    """
    if given is not None:
        check_config(given)
        return given
    named = os.environ.get(CONFIG_VARIABLE)
    if not named:
        return None
    check_config(Path(named), f", which {CONFIG_VARIABLE} names")
    return Path(named)


def check_config(config: Path, text: str = "") -> None:
    """Check that there is a settings file; an error ends with *says*.

    Raises:
        GradwatchError: If there is none.
    """
    if not config.is_file():
        msg = f"no config file {config}{text}"
        raise GradwatchError(msg)
