"""The fairness benchmark: it runs, and it sees what is refused, lost or trimmed."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest

from benchmarks import fairness
from benchmarks.harness import aggregator, workers
from benchmarks.honest import Place, Told, work

pytestmark = pytest.mark.slow


def test_the_honest_are_measured_beside_an_attack() -> None:
    row = fairness._measure("garbage HTTP", 0.3, 0.5)

    assert row.wrongs == []
    assert len(row.quiet.acked) >= 4
    assert len(row.during.answered) >= 4
    assert row.memory_mb > 10
    assert row.refused["HTTP 400"] > 0


def test_readers_get_all_alerts_beside_many_who_never_read() -> None:
    """350 of 500 read: each gets each alert, and it is told how long that took."""
    row = fairness._measure("many readers", 0.3, 3.0)

    assert row.wrongs == []
    (told,) = row.notes
    assert re.match(r"350 readers got (\d+) alerts each, those that begin \d+ ms after", told)


def test_what_is_missing_of_the_honest_run_is_said() -> None:
    """Records that were sent and are neither counted by the aggregator nor in its log."""
    with aggregator(fairness.CONFIG) as server:
        with workers(work, [Place(server.ingest, server.url, fairness.RUN)]) as (honest,):
            assert honest.receive() == "ready"
            honest.tell(None)
            told: Told = honest.receive()
        assert list(fairness._health_wrongs(server, told)) == []
        more = replace(told, produced=told.produced + 2)
        (wrong,) = fairness._health_wrongs(server, more)
        assert wrong == f"of {more.produced} records {told.produced} stored, 0 lost"
        server.stop()
        assert list(fairness._log_wrongs(server, told)) == []
        (wrong,) = fairness._log_wrongs(server, more)
        assert wrong == f"2 of {more.produced} records trimmed from the log"
        (wrong,) = fairness._log_wrongs(server, replace(told, sessions=(os.urandom(16),)))
        assert wrong == f"{told.produced} of {told.produced} records trimmed from the log"
