"""`gradwatch import`: makes a data directory of the archive of a run."""

from __future__ import annotations

import json
import shlex
import shutil
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

import typer

from gradwatch_server.cli.options import AsJson, check_name
from gradwatch_server.clock import Clock
from gradwatch_server.core.printable import printable
from gradwatch_server.errors import GradwatchError
from gradwatch_server.storage.archive_frames import BadArchiveError, read_frames, read_magic
from gradwatch_server.storage.archive_import import ArchiveImport, ImportedRun
from gradwatch_server.stores import open_store

MAX_BYTES: Final = 16 << 30


def import_(
    file: Annotated[Path, typer.Argument(help="What `gradwatch export --to archive` wrote.")],
    data: Annotated[Path, typer.Option(help="The data directory that is made.")],
    max_bytes: Annotated[
        int, typer.Option(min=1, help="What the archive may hold, before it was compressed.")
    ] = MAX_BYTES,
    as_json: AsJson = False,
) -> None:
    """Make a data directory of an archive; `gradwatch serve --data` shows the run then."""
    check_name(data, "--data")
    if data.exists() or data.is_symlink():
        msg = f"{data} is there already; an archive needs a directory of its own"
        raise GradwatchError(msg)
    part = data.with_name(f"{data.name}.part")
    if part.exists():
        msg = f"{part} is there of an import that was interrupted, or runs: delete it first"
        raise GradwatchError(msg)
    try:
        found = _import(file, part, max_bytes)
        part.rename(data)
    except BadArchiveError as error:
        msg = f"cannot import {file}: {error}"
        raise GradwatchError(msg) from error
    except OSError as error:
        msg = f"cannot import {file}: {error.strerror}"
        raise GradwatchError(msg) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    if as_json:
        print(json.dumps({"path": str(data), "run": found.run, "attempts": found.attempts}))
    else:
        attempts = "1 attempt" if len(found.attempts) == 1 else f"{len(found.attempts)} attempts"
        told = f"{data}: run {found.run}, {attempts}; look at it with"
        print(printable(f"{told}: gradwatch serve --data {shlex.quote(str(data))}"))


def _import(file: Path, part: Path, max_bytes: int) -> ImportedRun:
    with file.open("rb") as opened:
        read_magic(opened)
        with closing(open_store(part)) as store:
            frames = ((kind, fields) for kind, fields, _ in read_frames(opened, max_bytes))
            return ArchiveImport(store).add_all(frames, Clock().now_ns())
