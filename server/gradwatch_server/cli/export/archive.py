"""A run as one file: the frames of its archive, page by page, so that it can be interrupted."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

from gradwatch_server.api.routes.archive import MEDIA_TYPE, NEXT_HEADER
from gradwatch_server.cli.client import not_an_aggregator, query_of, run_path
from gradwatch_server.cli.export.job import telling_what_is_kept
from gradwatch_server.cli.export.part import check_place, part_of, sync_directory
from gradwatch_server.cli.export.source import Pages
from gradwatch_server.errors import GradwatchError
from gradwatch_server.storage.archive_frames import (
    MAGIC,
    BadArchiveError,
    FrameKind,
    encode_frame,
    read_frames,
)

NAME: Final = "archive"
"""What `--to` calls it."""

ENDING: Final = ".gradwatch"

_NO_LIMIT: Final = 1 << 62


def fetch_archive(
    url: str, run: str, out: Path, on_progress: Callable[[int], None], *, resume: bool
) -> int:
    """Write the archive of a run that is over; return its bytes.

    Args:
        url: Address of the aggregator.
        run: Name of the run.
        out: The file that it becomes.
        on_progress: Is told after each page how many bytes there are.
        resume: Whether to go on with one that was interrupted.

    Raises:
        GradwatchError: If it cannot begin, or does not come to its end; what is there already is
            kept then.
    """
    check_place(out, resume=resume)
    part = part_of(out)
    with contextlib.closing(Pages(url)) as pages:
        first = pages.get(_path(run, None), MEDIA_TYPE)  # before anything is made
        with telling_what_is_kept(part, lambda: _size(part)), part.open("a+b") as file:
            _hold(file, part)
            cursor, num_frames = _begin(file, run, part)
            while cursor is not None:
                answer = first if cursor == "" else pages.get(_path(run, cursor), MEDIA_TYPE)
                num_frames += _count(answer.content, url)
                cursor = answer.headers.get(NEXT_HEADER)
                end = FrameKind.END if cursor is None else FrameKind.NEXT
                file.write(answer.content + encode_frame(end, cursor or num_frames))
                file.flush()
                on_progress(file.tell())
            os.fsync(file.fileno())
            size = file.tell()
            part.rename(out)
            sync_directory(out.parent)
    return size


def _path(run: str, cursor: str | None) -> str:
    return run_path(run, "archive") + query_of(("cursor", cursor))


def _size(part: Path) -> str:
    return f"{part.stat().st_size:,} bytes" if part.exists() else "nothing yet"


def _hold(file: BinaryIO, part: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        msg = f"another export writes to {part} just now"
        raise GradwatchError(msg) from error


def _begin(file: BinaryIO, run: str, part: Path) -> tuple[str | None, int]:
    """Find the end of the last page that is complete, cut off the rest, and return the cursor.

    And how many frames there are. The cursor of the first page is an empty text.
    """
    file.seek(0)
    start = file.read(len(MAGIC))
    if not MAGIC.startswith(start):
        msg = f"cannot go on: {part} is no archive of gradwatch; delete it"
        raise GradwatchError(msg)
    cursor, end, num_frames, found = "", 0, 0, 0
    with contextlib.suppress(BadArchiveError):  # what was written last may be cut off
        for kind, fields, at in read_frames(file, _NO_LIMIT) if start == MAGIC else ():
            if kind is FrameKind.MANIFEST and fields[0]["run"] != run:
                msg = f"cannot go on: {part} is of run {fields[0]['run']}; delete it"
                raise GradwatchError(msg)
            found += kind is not FrameKind.NEXT
            if kind is FrameKind.NEXT:
                cursor, end, num_frames = str(fields[0]), at, found
    file.truncate(end)
    file.seek(0, os.SEEK_END)
    if not end:
        file.write(MAGIC)
    return cursor, num_frames


def _count(body: bytes, url: str) -> int:
    """Return how many frames a page has, having looked at each."""
    try:
        return sum(1 for _ in read_frames(BytesIO(body), _NO_LIMIT))
    except BadArchiveError as error:
        raise not_an_aggregator(url) from error
