"""docs/incidents.md says what the code says today: two of its trainings, made again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "incidents.md").read_text("utf-8")
QUICK: Final = ("nan-of-one-rank", "replica-corrupted")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of scripts/incidents."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return lambda name: pytest.importorskip(f"incidents.{name}")


def _comparable(section: str) -> str:
    """Return it without the digits that differ from one processor to another."""
    return re.sub(r"\d+\.\d+(?:e[+-]\d+)?", "NUMBER", " ".join(section.split()))


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_an_incident_is_what_its_training_gives_today(name: str, module: Any) -> None:
    """Alerts, steps, ranks and layers; `scripts/pictures incidents` writes them anew."""
    (case,) = (case for case in module("cases").CASES if case.name == name)
    section = module("text").section(module("incident").happen(case))

    written = PAGE.split(f"\n## {case.title}\n")[1].split("\n## ")[0].split("\n<!-- ")[0]
    assert _comparable(f"## {case.title}\n{written}") == _comparable(section)


def test_each_incident_has_its_section_and_a_small_picture(module: Any) -> None:
    """And there is no other of either."""
    cases = module("cases").CASES
    pictures = sorted((ROOT / "docs" / "pictures").glob("incident-*.png"))

    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == [case.title for case in cases]
    assert re.findall(r"\(pictures/incident-(\S+)\.png\)", PAGE) == [case.name for case in cases]
    assert {file.name for file in pictures} == {f"incident-{case.name}.png" for case in cases}
    assert max(file.stat().st_size for file in pictures) < 150_000
