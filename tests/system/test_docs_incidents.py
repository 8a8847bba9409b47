"""docs/incidents.md says what the code says today: two of its trainings, made again."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from tests.support.chromium import missing

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "incidents.md").read_text("utf-8")
QUICK: Final = ("nan-of-one-rank", "replica-corrupted")
MAX_BYTES: Final = 150_000

Load: TypeAlias = Callable[[str], Any]


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    """Import a module of scripts/incidents."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield lambda name: pytest.importorskip(f"incidents.{name}")


@pytest.fixture(scope="module")
def incidents(load: Load) -> dict[str, Any]:
    cases = {case.name: case for case in load("cases").CASES}
    return {name: load("incident").happen(cases[name]) for name in QUICK}


def _comparable(section: str) -> str:
    """Return it without the digits that differ from one processor to another."""
    return re.sub(r"\d+\.\d+(?:e[+-]\d+)?", "NUMBER", " ".join(section.split()))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", QUICK)
def test_an_incident_is_what_its_training_gives_today(
    name: str, incidents: dict[str, Any], load: Load
) -> None:
    """Alerts, steps, ranks and layers; `scripts/pictures incidents` writes them anew."""
    title = incidents[name].case.title
    section = load("text").section(incidents[name])

    written = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0].split("\n<!-- ")[0]
    assert _comparable(f"## {title}\n{written}") == _comparable(section)


@pytest.mark.exhaustive
def test_a_picture_is_made_of_a_log(incidents: dict[str, Any], load: Load, tmp_path: Path) -> None:
    if why := missing():
        (pytest.fail if os.environ.get("GRADWATCH_BROWSER") == "required" else pytest.skip)(why)
    chosen, pictures = [incidents[QUICK[0]]], load("pictures")
    pictures.write_log(chosen, tmp_path / "data")

    (file,) = pictures.take(chosen, tmp_path / "data", tmp_path)

    assert file.name == f"incident-{QUICK[0]}.png"
    assert file.read_bytes().startswith(b"\x89PNG")
    assert 20_000 < file.stat().st_size < MAX_BYTES


def test_each_incident_has_its_section_and_a_small_picture(load: Load) -> None:
    cases = load("cases").CASES
    pictures = sorted((ROOT / "docs" / "pictures").glob("incident-*.png"))

    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == [case.title for case in cases]
    assert re.findall(r"\(pictures/incident-(\S+)\.png\)", PAGE) == [case.name for case in cases]
    assert {file.name for file in pictures} == {f"incident-{case.name}.png" for case in cases}
    assert max(file.stat().st_size for file in pictures) < MAX_BYTES
