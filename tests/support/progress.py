"""Progress of a parallel test run in one line: tests done, failures, seconds."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Generator
from typing import Final, TypeAlias

import pytest

Status: TypeAlias = tuple[str, str, str]
"""Category of a test's end, its letter and its word."""

SHARE: Final = 0.1
"""Share of the tests after which a new line is printed where the line cannot be written over."""


class Progress:
    """Counter of finished tests, printed in place of a letter for each test."""

    def __init__(self) -> None:
        self._total = 0
        self._done = 0
        self._failed = 0
        self._begun_s = time.monotonic()
        self._printed_share = 0.0

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Remember the number of tests."""
        self._total = len(ids)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, Status, Status]:
        """Let the terminal count a test and print no letter for it."""
        category, _letter, word = yield
        return category, "", word

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print one line for each reason why tests are left out."""
        skipped: list[pytest.TestReport] = terminalreporter.stats.get("skipped", [])
        reasons = Counter(
            report.longrepr[2] for report in skipped if type(report.longrepr) is tuple
        )
        for reason, count in sorted(reasons.items()):
            terminalreporter.write_line(f"left out: {reason.removeprefix('Skipped: ')} ({count})")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test at its end, and print the line."""
        self._failed += int(report.failed)
        if report.when != "teardown":
            return
        self._done += 1
        share = self._done / max(self._total, self._done)
        is_terminal = sys.stdout.isatty()
        if not is_terminal and share < self._printed_share + SHARE:
            return
        self._printed_share = share
        seconds = time.monotonic() - self._begun_s
        line = f"{self._done} of {self._total} tests, {self._failed} failed, {seconds:.0f} s"
        sys.stdout.write(f"\r{line}" if is_terminal else f"{line}\n")
        sys.stdout.flush()
