"""Default name of a user."""

from __future__ import annotations

import os
from getpass import getuser


def user_name() -> str:
    """Return the name of the user, the number where there is none, as in many containers."""
    try:
        return getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
