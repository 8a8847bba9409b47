"""The documentation as a site: built strictly, and nothing in it comes from elsewhere."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.support.chromium import chromium, missing
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).parents[2]
MKDOCS: Final = [sys.executable, "-m", "mkdocs"]
FETCHED: Final = {"script": "src", "img": "src", "iframe": "src", "source": "srcset"}
"""What a browser fetches by itself, beside `link`."""


def _build(site: Path, root: Path = ROOT, source: str = "") -> subprocess.CompletedProcess[str]:
    """Build as `scripts/site` does."""
    return subprocess.run(
        [*MKDOCS, "build", "--strict", "--site-dir", str(site)],
        cwd=root,
        env=os.environ | {"DOCS_SOURCE_URL": source, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE_S,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    done = _build(made)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return made


class _Fetched(HTMLParser):
    """Collects what a page has a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = FETCHED.get(tag)
        if tag == "link" and given.get("rel") not in {"canonical", "next", "prev"}:
            name = "href"
        if name is not None and (address := given.get(name)):
            self.addresses.append(address)


@pytest.mark.exhaustive
def test_a_page_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        parser = _Fetched()
        parser.feed(page.read_text("utf-8"))
        assert len(parser.addresses) > 3
        for address in parser.addresses:
            if not address.startswith("data:"):
                parts = urlsplit(address)
                assert (parts.scheme, parts.netloc) == ("", ""), f"{page.name}: {address}"
                folder = site if parts.path.startswith("/") else page.parent
                assert (folder / parts.path.lstrip("/")).exists(), f"{page.name}: {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*[\"']?(?:https?:)?//", style.read_text("utf-8"))


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
        """Say nothing."""


def test_a_browser_finds_a_word_and_asks_nobody_else(address: str) -> None:
    """The search is a script of the site's own."""
    if why := missing():
        (pytest.fail if os.environ.get("GRADWATCH_BROWSER") == "required" else pytest.skip)(why)
    with chromium() as browser:
        page = browser.new_page()
        asked: list[str] = []
        faults: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{address}/index.html")
        page.keyboard.press("/")
        page.keyboard.type("vanishing")
        page.locator(".md-search-result__link").first.wait_for(timeout=1000 * PATIENCE_S)
        found = page.locator(".md-search-result__link").first.get_attribute("href")
    assert "rules.html" in found
    assert faults == []
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


@pytest.mark.exhaustive
def test_links_out_of_the_documentation_are_names_or_lead_to_the_repository(
    site: Path, tmp_path: Path
) -> None:
    """As `DOCS_SOURCE_URL` says; those to pages of the root lead to these."""
    test = "tests/system/test_promise.py"
    assert _build(tmp_path, source="https://code.example/gradwatch/blob/main").returncode == 0
    plain, linked = ((each / "index.html").read_text("utf-8") for each in (site, tmp_path))

    assert f"<span>a test with real processes (<code>{test}</code>)</span>" in plain
    assert f'href="https://code.example/gradwatch/blob/main/{test}">a test with' in linked
    assert 'href="contributing.html">contributing</a>' in plain
    assert 'src="pictures/page-light.png"' in plain


WRONG: Final = {
    "[page](nowhere.md)": "'nowhere.md', but the target is not found",
    "[anchor](alerts.md#nowhere)": "does not contain an anchor '#nowhere'",
    "[absolute](/alerts.md)": "absolute link '/alerts.md'",
    "[file](../tests/nowhere.py)": "no 'tests/nowhere.py' to link to",
    "[anchor of the root](../CONTRIBUTING.md#nowhere)": "'contributing.md#nowhere'",
}


@pytest.mark.exhaustive
def test_what_leads_nowhere_and_a_page_that_is_in_no_menu_are_errors(tmp_path: Path) -> None:
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "sitehook.py", tmp_path / "scripts")
    for folder in ("tests", "client", "server", "shared", "benchmarks", "simulation"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "docs" / "forgotten.md").write_text("# Forgotten\n\n" + "\n".join(WRONG), "utf-8")

    done = _build(tmp_path / "site", root=tmp_path)

    assert done.returncode == 1
    assert "- forgotten.md" in done.stderr
    assert [text for text in WRONG.values() if text not in done.stderr] == []
    assert done.stderr.count("WARNING") == 1 + len(WRONG)
