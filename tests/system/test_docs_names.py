"""Names in the pages: modules, links, scripts, commands, tests and paths that have to exist."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
from typer.main import get_command

from gradwatch_server.cli.app import app

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/*.md")]
)
TOP: Final = "client|server|shared|tests|simulation|benchmarks|scripts|docs"

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def _code(page: Path) -> list[str]:
    """Return what stands between backticks in a page, and the lines of its shell examples."""
    text = page.read_text("utf-8")
    shell = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`]+)`", prose) + [line for block in shell for line in block.split("\n")]


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]*))?\)", page.read_text("utf-8"))
    for target, anchor in links:
        found = (page.parent / target) if target else page
        assert found.exists(), target
        assert not anchor or anchor in _anchors(found), f"{target}#{anchor}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, new = set[Path](), [ROOT / "README.md"]
    while new:
        page = new.pop()
        reached.add(page)
        links = re.findall(r"\]\((?!https?:)([^)\s#]+\.md)", page.read_text("utf-8"))
        new += {(page.parent / link).resolve() for link in links} - reached - set(new)

    assert set(PAGES) <= reached


@pytest.mark.slow
@each_page
def test_scripts_commands_and_modules_that_are_to_be_run_exist(page: Path) -> None:
    """`scripts/x`, `gradwatch x` and `python -m x`."""
    commands = get_command(app).commands  # type: ignore[attr-defined]  # a Group
    for code in _code(page):
        for script in re.findall(r"\bscripts/([a-z]+)\b(?!/)", code):
            assert (ROOT / "scripts" / script).exists(), code
        for command in re.findall(r"^(?:\S*/)?gradwatch ([a-z]+)\b", code):
            assert command in commands, code
        for module in re.findall(r"\bpython -m ([\w.]+)", code):
            assert find_spec(module) is not None, code


@each_page
def test_tests_and_paths_that_are_named_exist(page: Path) -> None:
    """A test by its name alone, everything else by its path."""
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    for code in _code(page):
        if name := re.search(r"\btest_\w+\.py\b", code):
            assert name.group() in tests, code
        if re.fullmatch(rf"(?:{TOP})/[\w./-]+", code):
            assert (ROOT / code).exists(), code


@pytest.mark.slow
def test_the_glossary_is_in_order_and_has_only_words_that_are_used() -> None:
    glossary = ROOT / "docs" / "glossary.md"
    words = re.findall(r"^\| ([a-z][a-z ]+) \|", glossary.read_text("utf-8"), re.MULTILINE)[1:]
    others = " ".join(page.read_text("utf-8") for page in PAGES if page != glossary).lower()

    assert len(words) > 30
    assert words == sorted(words)
    assert [word for word in words if word not in " ".join(others.split())] == []
