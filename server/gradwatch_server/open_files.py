"""Limit of open files of this process. Each connection is one."""

from __future__ import annotations

import resource
from typing import Final

UNLIMITED: Final = 1 << 20
"""What is taken for the limit where there is none."""


def raise_limit() -> None:
    """Use what the system allows: the limit that is in force at first is often only 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_open() -> int:
    """Return the limit in force."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft
