"""Installed packages by their metadata: nothing is imported for it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version


def version_of(name: str) -> str | None:
    """Return the version of an installed distribution, None without one."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def complaints(extra: str) -> Iterator[str]:
    """Yield what an extra asks for and is missing, or is of a version that does not fit.

    `packaging` reads it. The extra `client` does not bring that; without it pip alone has compared.
    """
    try:
        from packaging.requirements import Requirement  # noqa: PLC0415 - see above
    except ModuleNotFoundError:
        return
    for text in _requirements():
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        installed = version_of(wanted.name)
        if installed is None:
            yield f"{wanted.name}{wanted.specifier} is not installed"
        elif not wanted.specifier.contains(installed, prereleases=True):
            yield f"{wanted.name} {installed} is not {wanted.specifier}"


def _requirements() -> list[str]:
    try:
        return requires("gradwatch") or []
    except PackageNotFoundError:  # used without being installed
        return []
