"""Debian's Chromium, driven by Playwright, where both are installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

from tests.support.waiting import PATIENCE_S

HOW: Final = "apt-get install chromium, and pip install --group browser"
PACKAGES: Final = ("playwright", "axe_playwright_python")


def missing() -> str | None:
    """Say what is missing to look at the page, None if nothing is."""
    for package in PACKAGES:
        if find_spec(package) is None:
            return f"no {package}: {HOW}"
    return None if _find() else f"no chromium: {HOW}"


@contextmanager
def chromium() -> Iterator[Any]:
    """Run Chromium; it must not be `missing`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # In a container nothing lets it build its own sandbox; it sees our own page alone.
        browser = playwright.chromium.launch(
            executable_path=_find(), args=["--no-sandbox"], timeout=1000 * PATIENCE_S
        )
        try:
            yield browser
        finally:
            browser.close()


def _find() -> str | None:
    return os.environ.get("GRADWATCH_CHROMIUM") or shutil.which("chromium")
