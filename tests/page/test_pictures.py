"""The README's pictures of the page: they are there, small, and what makes them works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.page.feeding import feed
from tests.support.aggregator import Aggregator

ROOT = Path(__file__).parents[2]
MAX_BYTES = 200_000
PNG = b"\x89PNG\r\n\x1a\n"


def test_the_pictures_in_the_readme_are_there_and_small() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    (picture,) = re.findall(r"<picture>.*?</picture>", text, re.DOTALL)

    assert "prefers-color-scheme: dark" in picture
    assert re.search(r'alt="[^"]*step 100[^"]*rank 1[^"]*head\.bias', picture)
    paths = re.findall(r'(?:src|srcset)="([^"]+)"', picture)
    assert sorted(paths) == ["docs/pictures/page-dark.png", "docs/pictures/page-light.png"]
    for path in paths:
        content = (ROOT / path).read_bytes()
        assert content.startswith(PNG)
        assert len(content) < MAX_BYTES


def test_pictures_are_made_of_a_run(
    browser: Any, aggregator: Aggregator, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    page = pytest.importorskip("readme_pictures")
    feed(aggregator, run="demo")

    files = page.take(browser, aggregator.url, tmp_path)

    assert [file.name for file in files] == ["page-light.png", "page-dark.png"]
    light, dark = (file.read_bytes() for file in files)
    assert light.startswith(PNG)
    assert dark.startswith(PNG)
    assert light != dark
