"""An aggregator in a process of its own, that takes all and keeps nobody from Python's lock."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator

from tests.support.recording import Sink


@contextlib.contextmanager
def listening() -> Iterator[str]:
    """Run one; the endpoint is given."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu_session.receiver"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def main() -> None:
    """Listen until standard input ends."""
    aggregator = Sink()
    aggregator.start()
    print(aggregator.endpoint, flush=True)
    keep_little = threading.Thread(target=_forget, args=(aggregator,), daemon=True)
    keep_little.start()
    sys.stdin.read()
    aggregator.stop()


def _forget(aggregator: Sink) -> None:
    while aggregator.is_alive():
        aggregator.join(1.0)
        aggregator.stored.clear()


if __name__ == "__main__":
    main()
