"""Room for what a connection takes: without it ZeroMQ would abort the process, not raise."""

from __future__ import annotations

import resource
import threading
from pathlib import Path
from typing import Final

DESCRIPTORS: Final = 16
"""A connection takes 9, spill files take 2; the rest is for a reconnect."""

THREADS: Final = 3
"""Two of ZeroMQ, and the sender."""


def check_room() -> None:
    """Refuse to begin where the connection could not be made.

    Raises:
        ValueError: If too few descriptors are free, or the system starts no more threads.
    """
    check_descriptors()
    if (started := _num_started(THREADS)) < THREADS:
        msg = (
            f"threads: {THREADS} are needed, the system starts {started} more; raise the limit "
            "(ulimit -u, or the container's pids limit)"
        )
        raise ValueError(msg)


def check_descriptors() -> None:
    """Refuse to open a socket where that could not be done.

    Raises:
        ValueError: If too few descriptors are free.
    """
    if (free := _num_free()) < DESCRIPTORS:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        msg = (
            f"file descriptors: {DESCRIPTORS} are needed, {free} of {limit} are free; raise the "
            "limit (ulimit -n), or close files"
        )
        raise ValueError(msg)


def _num_free() -> int:
    """Return how many descriptors can be opened."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # Nothing is opened for it: what is open for a moment may be what the training lacks then.
    # One of those that are listed is that of the list.
    try:
        return limit - sum(int(own.name) < limit for own in Path("/dev/fd").iterdir()) + 1
    except FileNotFoundError:  # a system that does not list them
        return limit
    except OSError:  # there is none left to list them with
        return 0


def _num_started(enough: int) -> int:
    """Return how many threads can be started together, counting up to *enough*."""
    done = threading.Event()
    started: list[threading.Thread] = []
    try:
        while len(started) < enough:
            thread = threading.Thread(target=done.wait, name="gradwatch-room", daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        pass  # the system is asked for one too many: that is the answer
    finally:
        done.set()
        for thread in started:
            thread.join()
    return len(started)
