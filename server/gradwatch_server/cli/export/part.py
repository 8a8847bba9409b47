"""The place of an export: a directory that has its name only once it is complete."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from gradwatch_server.cli.export.format import Sealed
from gradwatch_server.errors import GradwatchError

MANIFEST: Final = "manifest.json"
METADATA: Final = "metadata.json"

PART: Final = ".part"
"""What the name of one that is not complete ends with."""

VERSION: Final = 1
"""Of the manifest; another one is not gone on with."""


@dataclass(slots=True, kw_only=True)
class Manifest:
    """Progress of an export.

    Args:
        run: Name of the run.
        attempt: Number of the attempt.
        format: Name of the format.
        choice: What of the run is wanted, plain.
        facts: What `About.facts` says, as it was when the export began.
        epochs: (epoch, first step, last step) of what is still to be exported.
        kept: (epoch, first step, last step, width) of what is complete.
        sealed: Where the writer is.
        version: That of this form.
    """

    run: str
    attempt: int
    format: str
    choice: dict[str, Any]
    facts: dict[str, Any]
    epochs: list[list[int]]
    kept: list[list[int]] = field(default_factory=list)
    sealed: Sealed = field(default_factory=dict)
    version: int = VERSION

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the manifest of an export that was interrupted.

        Raises:
            GradwatchError: If it cannot be read.
        """
        path = directory / MANIFEST
        try:
            plain = json.loads(path.read_text("utf-8"))
            if plain.get("version") == VERSION:
                return cls(**plain)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            msg = f"cannot go on: {path} does not say how far it is ({error}); delete {directory}"
            raise GradwatchError(msg) from error
        msg = f"cannot go on: {path} is of another version of gradwatch; delete {directory}"
        raise GradwatchError(msg)

    def write(self, directory: Path) -> None:
        """Replace what is there, so that a kill leaves one or the other."""
        write_json(directory / MANIFEST, asdict(self))

    def note(self, epoch: int, first: int, last: int, width: int) -> None:
        """Note that steps are complete; what follows on the last ones is put to them."""
        if self.kept and self.kept[-1][::3] == [epoch, width]:
            self.kept[-1][2] = last
        else:
            self.kept.append([epoch, first, last, width])


def write_json(path: Path, plain: Mapping[str, Any]) -> None:
    """Write a file as a whole, down to the disk."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        json.dump(plain, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def part_of(out: Path) -> Path:
    """Return where an export is as long as it is not complete."""
    return out.with_name(out.name + PART)


def check_place(out: Path, *, resume: bool) -> bool:
    """Return whether there is an export to go on with.

    Raises:
        GradwatchError: If there is something that would be lost.
    """
    part = part_of(out)
    if out.exists() or out.is_symlink():
        msg = f"{out} is there already; delete it, or give another path with --out"
        raise GradwatchError(msg)
    if not part.exists():
        return False
    if not resume:
        msg = (
            f"{part} is there of an export that was interrupted: go on with --resume, or delete it"
        )
        raise GradwatchError(msg)
    return True


def begun_attempt(out: Path) -> int | None:
    """Return the attempt of an export that was interrupted, None without one.

    Raises:
        GradwatchError: If that cannot be read.
    """
    part = part_of(out)
    return Manifest.read(part).attempt if part.exists() else None


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Keep other exports out of a directory, which is made if it is missing.

    Raises:
        GradwatchError: If one has it, or it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError as error:
        msg = f"cannot make {directory}: {error.strerror}"
        raise GradwatchError(msg) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        msg = f"another export writes to {directory} just now"
        raise GradwatchError(msg) from error
    finally:
        os.close(descriptor)


def finish(part: Path, out: Path, metadata: Mapping[str, Any]) -> None:
    """Give a complete export its name."""
    write_json(part / METADATA, metadata)
    (part / MANIFEST).unlink()
    part.rename(out)
    descriptor = os.open(out.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
