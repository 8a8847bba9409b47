"""The switch: `GRADWATCH_DISABLED` lets `attach` return a watch that does nothing."""

from __future__ import annotations

import os


def is_disabled() -> bool:
    """Tell whether `GRADWATCH_DISABLED` switches gradwatch off."""
    return os.environ.get("GRADWATCH_DISABLED", "").lower() not in ("", "0", "false", "no")
