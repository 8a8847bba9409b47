"""Checks what is in an sdist and a wheel: all that belongs there, and nothing else.

Usage: distribution.py DIST VERSION
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

PACKAGES: Final = ("client/gradwatch", "server/gradwatch_server", "shared/gradwatch_wire")

VENDORED: Final = "server/gradwatch_server/page/static/vendor/uplot"
VENDORED_FILES: Final = ("LICENSE.txt", "uPlot.esm.js", "uPlot.min.css")
"""Not of this repository; its licence goes with it."""

WITH_SDIST: Final = {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "PKG-INFO"}


def wheel_problems(path: Path, version: str, tracked: set[str]) -> list[str]:
    """Return what is wrong with a wheel.

    Args:
        path: The wheel.
        version: What it has to be of.
        tracked: Paths of the files that git knows, from the root of the checkout.
    """
    with zipfile.ZipFile(path) as wheel:
        found = set(wheel.namelist())
        info = f"gradwatch-{version}.dist-info"
        if f"{info}/METADATA" not in found:
            return [f"no {info}/METADATA"]
        metadata = BytesParser().parsebytes(wheel.read(f"{info}/METADATA"))
        entry = wheel.read(f"{info}/entry_points.txt").decode()
    wanted = {
        str(PurePosixPath(name).relative_to(PurePosixPath(package).parent))
        for package in PACKAGES
        for name in _files(tracked)
        if name.startswith(f"{package}/")
    }
    own = {name for name in found if not name.startswith(f"{info}/")}
    problems = [f"no {name}" for name in sorted(wanted - own)]
    problems += [f"{name} does not belong there" for name in sorted(own - wanted)]
    problems += _metadata_problems(metadata, version)
    if f"{info}/licenses/LICENSE" not in found:
        problems.append("no LICENSE")
    if "gradwatch = gradwatch_server.__main__:main" not in entry:
        problems.append("no command gradwatch")
    return problems


def sdist_problems(path: Path, version: str, tracked: set[str]) -> list[str]:
    """Return what is wrong with an sdist: what a wheel is built from has to be in it."""
    with tarfile.open(path) as archive:
        top = f"gradwatch-{version}/"
        members = [member for member in archive.getmembers() if not member.isdir()]
        odd = [member.name for member in members if not member.isfile()]
        found = {member.name.removeprefix(top) for member in members}
    needed = {
        name
        for name in _files(tracked)
        if name.startswith((*(f"{package}/" for package in PACKAGES), "vendored/"))
    }
    problems = [f"{name} is no plain file" for name in odd]
    problems += [f"no {name}" for name in sorted((needed | WITH_SDIST) - found)]
    extra = found - _files(tracked) - WITH_SDIST
    return problems + [f"{name} is not in git" for name in sorted(extra)]


def _files(tracked: set[str]) -> set[str]:
    return tracked | {f"{VENDORED}/{name}" for name in VENDORED_FILES}


def _metadata_problems(metadata: Message, version: str) -> list[str]:
    wanted = {"Name": "gradwatch", "Version": version, "License-Expression": "Apache-2.0"}
    return [
        f"{key} is {metadata[key]!r}, not {value!r}"
        for key, value in wanted.items()
        if metadata[key] != value
    ]


def main() -> None:
    """Print what was looked at; exit 1 with what is wrong."""
    dist, version = Path(sys.argv[1]), sys.argv[2]
    listed = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607 - git of the one who releases
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    tracked = set(listed.stdout.split("\0")) - {""}
    for path, problems in (
        (dist / f"gradwatch-{version}-py3-none-any.whl", wheel_problems),
        (dist / f"gradwatch-{version}.tar.gz", sdist_problems),
    ):
        if found := problems(path, version, tracked):
            sys.exit("\n".join(f"{path.name}: {each}" for each in found))
        print(f"{path.name}: all that belongs there and nothing else, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
