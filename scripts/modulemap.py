"""Writes docs/map.md: every module with the first line of its docstring, and the import contracts.

Run it as `scripts/map`; a test says when that is due.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "map.md"

PARTS: Final = {
    "shared/gradwatch_wire": "What client and aggregator agree on. Imports msgpack only.",
    "client/gradwatch": "What a training process imports: torch, pyzmq and msgpack.",
    "server/gradwatch_server": "The aggregator: numpy and FastAPI, never torch.",
    "simulation": "Clusters from a seed: real engine, store and session; all else is simulated.",
    "tests": "They mirror the packages; tests/system runs real processes and checks the docs.",
    "benchmarks": "One module per benchmark.",
    "scripts": "The demo, and what makes pages of the documentation.",
    "vendored": "What the page needs that is not of this repository, and how a build gets it.",
    "docs/examples": "Programs that run, each of them in a test.",
    ".ci": "What only CI runs.",
}

INTRODUCTION: Final = """\
# The map

Every Python file, with the first line of its docstring. `scripts/map` writes this page; a test says
when it is out of date. How the parts work together: [architecture](architecture.md). How to add to
them: [CONTRIBUTING](../CONTRIBUTING.md).
"""

CONTRACTS: Final = """\
## Walls between the parts

`scripts/check` fails when an import crosses one of them (`[tool.importlinter]` in pyproject.toml).
"""


class MapError(Exception):
    """What has to be put right before the page can be written."""


def main() -> int:
    """Write the page."""
    try:
        PAGE.write_text(page(), "utf-8")
    except MapError as error:
        print(f"map: {error}", file=sys.stderr)
        return 1
    return 0


def page() -> str:
    """Return the page as it should be."""
    sections = [section(folder, files) for folder, files in by_folder(python_files())]
    return "\n".join([INTRODUCTION, *sections, contracts()])


def python_files() -> list[PurePosixPath]:
    """Return the Python files of the repository, those that are new and not ignored included."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True).split("\0")
    paths = sorted({PurePosixPath(name) for name in listed if name})
    return [path for path in paths if (ROOT / path).is_file()]  # a deleted one is still listed


def by_folder(
    paths: Iterable[PurePosixPath],
) -> list[tuple[PurePosixPath, list[PurePosixPath]]]:
    """Return the files folder by folder, in the order of the parts."""
    folders: dict[PurePosixPath, list[PurePosixPath]] = defaultdict(list)
    for path in paths:
        folders[path.parent].append(path)
    return sorted(folders.items(), key=lambda item: (part_of(item[0]), item[0].parts))


def part_of(folder: PurePosixPath) -> int:
    """Return the number of the part that a folder belongs to."""
    for number, part in enumerate(PARTS):
        if folder.is_relative_to(part):
            return number
    msg = f"{folder} belongs to no part; add one to PARTS in {Path(__file__).relative_to(ROOT)}"
    raise MapError(msg)


def section(folder: PurePosixPath, files: list[PurePosixPath]) -> str:
    """Return what the page says of a folder."""
    lines = [f"{'##' if str(folder) in PARTS else '###'} {folder}", ""]
    if about := PARTS.get(str(folder)) or first_line(folder / "__init__.py"):
        lines += [about, ""]
    modules = [path for path in files if path.name != "__init__.py"]
    if modules:
        lines += ["| module | what it is |", "|---|---|"]
        lines += [f"| `{path.name}` | {described(path)} |" for path in modules]
        lines.append("")
    return "\n".join(lines)


def described(path: PurePosixPath) -> str:
    """Return the first line of a module's docstring as a cell of a table."""
    if not (line := first_line(path)):
        msg = f"{path} has no docstring; its first line says what the module is"
        raise MapError(msg)
    return line.rstrip(".:").replace("|", "\\|")


def first_line(path: PurePosixPath) -> str:
    """Return the first line of a module's docstring, empty if it has none or is not there."""
    if not (ROOT / path).exists():
        return ""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0].strip()


def contracts() -> str:
    """Return the import contracts by name."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    names = [contract["name"] for contract in config["tool"]["importlinter"]["contracts"]]
    return "\n".join([CONTRACTS, *(f"* {name}" for name in names), ""])


if __name__ == "__main__":
    sys.exit(main())
