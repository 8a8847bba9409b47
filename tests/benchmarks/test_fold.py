"""The way of a record: its calls and its files become no more (`scripts/bench fold --calls`)."""

from __future__ import annotations

import pytest

from benchmarks.fold import Case, calls_of_record

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("ranks", "limit"), [(1, 350), (8, 90)])
def test_a_record_takes_no_more_calls(ranks: int, limit: int) -> None:
    python, c, files = calls_of_record(Case(ranks=ranks))

    assert python + c <= limit
    assert files <= 24
