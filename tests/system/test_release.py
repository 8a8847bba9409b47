"""Contents of a release: versions that agree, and archives that are complete."""

from __future__ import annotations

import importlib
import io
import re
import runpy
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradwatch_wire import __version__

ROOT = Path(__file__).parents[2]

TRACKED = {
    "client/gradwatch/__init__.py",
    "server/gradwatch_server/__main__.py",
    "shared/gradwatch_wire/version.py",
    "vendored/vendor.py",
    "tests/test_x.py",
}
METADATA = "Name: gradwatch\nVersion: 1.2.3\nLicense-Expression: Apache-2.0\n"
ENTRY = "[console_scripts]\ngradwatch = gradwatch_server.__main__:main\n"
INFO = "gradwatch-1.2.3.dist-info"
PAGE = "gradwatch_server/page/static/vendor/uplot"
UPLOT = [f"{PAGE}/{name}" for name in ("LICENSE.txt", "uPlot.esm.js", "uPlot.min.css")]


@pytest.fixture(scope="module")
def distribution() -> Any:
    """The script that looks into archives."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "distribution.py")))


def wheel_of(path: Path, without: str = "", **more: str) -> Path:
    """Write a wheel as it should be, but for what is left out or put in."""
    files = {
        "gradwatch/__init__.py": "",
        "gradwatch_server/__main__.py": "",
        "gradwatch_wire/version.py": "",
        **dict.fromkeys(UPLOT, ""),
        f"{INFO}/METADATA": METADATA,
        f"{INFO}/entry_points.txt": ENTRY,
        f"{INFO}/licenses/LICENSE": "",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in (files | more).items():
            if name != without:
                wheel.writestr(name, text)
    return path


def sdist_of(path: Path, names: set[str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"gradwatch-1.2.3/{name}"), io.BytesIO())
    return path


def test_the_top_level_has_the_packages_and_files_asked_for() -> None:
    asked = (
        "pyproject.toml",
        "client",
        "server",
        "shared",
        "tests",
        "docker-compose.yml",
        "README.md",
    )

    assert [name for name in asked if not (ROOT / name).exists()] == []


def test_the_citation_is_yaml_and_of_this_version() -> None:
    citation = importlib.import_module("yaml").safe_load((ROOT / "CITATION.cff").read_text("utf-8"))

    assert citation["version"] == __version__
    assert {"cff-version", "message", "title", "authors", "license"} <= citation.keys()


def test_the_version_stands_in_one_place() -> None:
    assert 'path = "shared/gradwatch_wire/version.py"' in (ROOT / "pyproject.toml").read_text()
    said = re.compile(rf"^__version__ *=|[\"']{re.escape(__version__)}[\"']", re.MULTILINE)
    found = [
        str(path.relative_to(ROOT))
        for folder in ("client", "server", "shared")
        for path in (ROOT / folder).rglob("*.py")
        if said.search(path.read_text("utf-8"))
    ]
    assert found == ["shared/gradwatch_wire/version.py"]


def test_a_wheel_that_is_whole_is_right(distribution: Any, tmp_path: Path) -> None:
    assert distribution.wheel_problems(wheel_of(tmp_path / "a.whl"), "1.2.3", TRACKED) == []


@pytest.mark.parametrize(
    ("without", "more", "problem"),
    [
        (UPLOT[0], {}, f"no {UPLOT[0]}"),
        ("gradwatch/__init__.py", {}, "no gradwatch/__init__.py"),
        (f"{INFO}/licenses/LICENSE", {}, "no LICENSE"),
        (f"{INFO}/METADATA", {}, f"no {INFO}/METADATA"),
        ("", {"tests/test_x.py": ""}, "tests/test_x.py does not belong there"),
        ("", {"gradwatch/gradwatch.db": ""}, "gradwatch/gradwatch.db does not belong there"),
        ("", {f"{INFO}/METADATA": "Version: 1\n"}, "Version is '1', not '1.2.3'"),
        ("", {f"{INFO}/entry_points.txt": ""}, "no command gradwatch"),
    ],
)
def test_what_is_wrong_with_a_wheel_is_told(
    distribution: Any, tmp_path: Path, without: str, more: dict[str, str], problem: str
) -> None:
    wheel = wheel_of(tmp_path / "a.whl", without, **more)

    assert problem in distribution.wheel_problems(wheel, "1.2.3", TRACKED)


def test_an_sdist_has_what_a_wheel_is_built_from_and_nothing_of_the_machine(
    distribution: Any, tmp_path: Path
) -> None:
    """Files that git does not know were only lying there."""
    uplot = {f"server/{name}" for name in UPLOT}
    whole = TRACKED | uplot | distribution.WITH_SDIST
    problems: Callable[..., list[str]] = distribution.sdist_problems
    assert problems(sdist_of(tmp_path / "a", whole), "1.2.3", TRACKED) == []

    found = problems(sdist_of(tmp_path / "b", whole | {"tests/left.db"}), "1.2.3", TRACKED)
    assert found == ["tests/left.db is not in git"]
    found = problems(sdist_of(tmp_path / "c", whole - {"vendored/vendor.py"}), "1.2.3", TRACKED)
    assert found == ["no vendored/vendor.py"]
