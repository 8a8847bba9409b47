"""The benchmark of the page: it measures, and says so where it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import page
from benchmarks.page import SECTION, Size


@pytest.mark.slow
def test_the_first_picture_and_what_is_live_are_measured(browser: Any) -> None:
    size = Size(layers=8, steps=20, live_s=2.0)

    rows = {what: measured for what, measured, _ in page._wide(browser, size, 1)}

    def number(words: str) -> float:
        (measured,) = (text for what, text in rows.items() if words in what)
        return float(measured.split()[0])

    assert 0 < number("first useful picture") < 60
    assert 0.05 < number("bytes transferred") < 1.5  # MB
    assert 0 < number("1 step/s: bytes") < 100  # kB


def test_without_a_browser_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(page, "missing", lambda: "no chromium: get it")

    page.run(quick=True)

    assert "nothing was measured, no chromium: get it" in capsys.readouterr().out


def test_the_document_has_the_place_of_the_table() -> None:
    assert "| a |" in SECTION.filled(SECTION.read(), "| a |")
