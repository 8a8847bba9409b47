"""What pip would install of this project into an empty environment: here, without installing it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import distribution

from packaging.requirements import Requirement


def files_of(extras: Iterable[str]) -> set[str]:
    """Return the files and folders in site-packages that the project needs with some extras.

    Its own are not among them. What is missing here raises `PackageNotFoundError`.
    """
    waiting = [Requirement(f"gradwatch[{','.join(extras)}]")]
    seen: set[str] = set()
    found: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        one = distribution(wanted.name)
        for line in one.requires or ():
            needed = Requirement(line)
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)
            ):
                needed.marker = None
                waiting.append(needed)
        if wanted.name != "gradwatch":
            found |= {file.parts[0] for file in one.files or ()}
    return {name for name in found if name not in ("..", "__pycache__")}
