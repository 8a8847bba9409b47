"""The README's pictures of the page: the demo's run in Chromium, light and dark.

Run it as `scripts/pictures`. Exit codes: 0 they were written, 1 something is missing or failed.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from gradwatch_server.cli.commands.demo import perform
from gradwatch_server.cli.demo.acts import RUN
from gradwatch_server.errors import GradwatchError
from tests.support.chromium import chromium, missing

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "docs" / "pictures"
SCHEMES: Final = ("light", "dark")
SIZE: Final = {"width": 1280, "height": 1200}
MARGIN: Final = 12
FOUND: Final = ".readout .bad"
"""The value of the cell that the key n goes to: the first NaN, in the layer that had it first."""


def main() -> int:
    """Run the demo and write the pictures; return the exit code."""
    why = missing()
    if why is not None:
        print(f"pictures: {why}", file=sys.stderr)
        return 1
    try:
        with ExitStack() as stack:
            url = perform(stack, seed=0, keep=False)
            with chromium() as browser:
                for file in take(browser, url, FOLDER):
                    print(f"{file.relative_to(ROOT)}: {file.stat().st_size / 1e3:.0f} kB")
    except GradwatchError as error:
        print(f"pictures: {error}", file=sys.stderr)
        return 1
    return 0


def take(browser: Any, url: str, folder: Path) -> list[Path]:
    """Write a picture of the demo's run for each scheme of colours.

    Args:
        browser: Chromium.
        url: Of an aggregator that has the run.
        folder: Where they are put, as `page-light.png` and `page-dark.png`.

    Returns:
        The files.
    """
    return [_take(browser, url, scheme, folder / f"page-{scheme}.png") for scheme in SCHEMES]


def _take(browser: Any, url: str, scheme: str, file: Path) -> Path:
    context = browser.new_context(viewport=SIZE, color_scheme=scheme, reduced_motion="reduce")
    try:
        page = context.new_page()
        page.goto(f"{url}/?run={RUN}")
        page.locator(".ruler .alert").first.wait_for()
        page.keyboard.press("n")
        page.locator(FOUND).wait_for()
        page.evaluate("scrollTo(0, 0)")
        legend = page.locator(".legend").bounding_box()
        height = legend["y"] + legend["height"] + MARGIN
        page.screenshot(path=file, clip={"x": 0, "y": 0, "width": SIZE["width"], "height": height})
    finally:
        context.close()
    return file


if __name__ == "__main__":
    sys.exit(main())
