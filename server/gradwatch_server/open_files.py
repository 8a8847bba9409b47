"""Limit of open files of this process. Each connection is one."""

from __future__ import annotations

import logging
import resource
from typing import Final

logger = logging.getLogger(__name__)

UNLIMITED: Final = 1 << 20
"""Limit that stands for none."""


def raise_limit() -> None:
    """Use what the system allows: the limit that is in force at first is often only 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def warn_of_limit(ingest: int, http: int) -> None:
    """Warn where the limit allows fewer connections than the budgets of the two ports."""
    files, wanted = most_open(), max(2 * ingest, 4 * http)
    if files < wanted:
        logger.warning(
            "the limit on open files is %d: at most %d connections to the ingest port and %d to "
            "HTTP are taken, fewer than the budgets; for all raise it to %d with ulimit -n",
            *(files, min(ingest, files // 2), min(http, files // 4), wanted),
        )


def most_open() -> int:
    """Return the limit in force."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft
