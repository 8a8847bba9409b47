"""Puts uPlot, which draws the page's lines, into the package: downloaded, checked, not committed.

A build does it by itself; `scripts/vendor` does it in a checkout. Without a network the rest is
built all the same: the page then shows tables in the place of lines, and says so.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.request import urlopen

ROOT: Final = Path(__file__).resolve().parents[1]
TARGET: Final = ROOT / "server/gradwatch_server/page/static/vendor/uplot"
PACKAGE: Final = "uplot/-/uplot-1.6.32.tgz"
REGISTRY: Final = "npm_config_registry"
"""Environment variable with the address of another registry, as npm has it."""

TIMEOUT_S: Final = 60.0

FILES: Final = {
    "uPlot.esm.js": (
        "dist/uPlot.esm.js",
        "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    ),
    "uPlot.min.css": (
        "dist/uPlot.min.css",
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    ),
    "LICENSE.txt": ("LICENSE", "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
}
"""Our name of a file to its path in uPlot's package, and its SHA-256."""


class VendorError(Exception):
    """It cannot be had; the text says why, and what to do."""


def vendor() -> None:
    """Put the files where the page looks for them, unless they are there.

    Raises:
        VendorError: The registry does not answer, or what it sends is something else.
    """
    if all(
        (TARGET / name).is_file() and _is_right((TARGET / name).read_bytes(), digest)
        for name, (_, digest) in FILES.items()
    ):
        return
    registry = os.environ.get(REGISTRY) or "https://registry.npmjs.org"
    address = f"{registry.rstrip('/')}/{PACKAGE}"
    try:
        with urlopen(address, timeout=TIMEOUT_S) as answer:  # noqa: S310 - who builds says where
            found = _unpack(answer.read())
    except (OSError, EOFError, ValueError, KeyError, HTTPException, tarfile.TarError) as error:
        why = f"{type(error).__name__}: {error}"
        msg = f"lines are missing from the page: {address}: {why}; scripts/vendor tries again"
        raise VendorError(msg) from error
    for name, (path, digest) in FILES.items():
        if not _is_right(found[name], digest):
            msg = f"lines are missing from the page: {path} of uPlot is not the file that it was"
            raise VendorError(msg)
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, content in found.items():
        (TARGET / name).write_bytes(content)


def _unpack(package: bytes) -> dict[str, bytes]:
    """Return our name of each file to its content."""
    with tarfile.open(fileobj=io.BytesIO(package), mode="r:gz") as archive:
        members = {name: f"package/{path}" for name, (path, _) in FILES.items()}
        files = {name: archive.extractfile(path) for name, path in members.items()}
        return {name: file.read() for name, file in files.items() if file is not None}


def _is_right(content: bytes, digest: str) -> bool:
    return hashlib.sha256(content).hexdigest() == digest


if __name__ == "__main__":
    try:
        vendor()
    except VendorError as failure:
        sys.exit(f"vendored/vendor.py: {failure}")
