"""The sessions in a directory of spill files: which segments belong to which of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from gradwatch_wire.records import Hello
from gradwatch_wire.session.send_buffer import BufferedRecord
from gradwatch_wire.session.spill_format import read_header, read_records

SUFFIX: Final = ".spill"

_NAME: Final = re.compile(r"(?P<stem>(?P<owner>.+\.\d+)\.[0-9a-f]{32})\.\d{6,}" + re.escape(SUFFIX))


def stem_of(run: str, rank: int, session: bytes) -> str:
    return f"{run}.{rank}.{session.hex()}"


def segment_name(stem: str, number: int) -> str:
    """Return the name of a segment; they sort in order."""
    return f"{stem}.{number:06d}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class SpilledSession:
    """A session on disk."""

    paths: tuple[Path, ...]
    session: bytes
    hello: Hello

    @classmethod
    def open(cls, path: Path) -> Self:
        """Find the session that a segment belongs to.

        Raises:
            SpillError: If it is no spill file.
            OSError: If it cannot be read.
        """
        session, hello = read_header(path)
        match = _NAME.fullmatch(path.name)
        paths = tuple(_segments(path.parent, match["stem"])) if match else (path,)
        return cls(paths, session, hello)

    def records(self, first: int) -> Iterator[BufferedRecord]:
        """Yield its records from number *first* on, in order, each once."""
        return read_records(self.paths, first)

    def remove(self) -> None:
        """Delete its segments."""
        for path in self.paths:
            path.unlink(missing_ok=True)


def _segments(directory: Path, stem: str) -> list[Path]:
    return sorted(directory.glob(f"{_literal(stem)}.*{SUFFIX}"))


def _literal(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


def find_sessions(directory: Path, run: str, rank: int) -> list[Path]:
    """Return the first segment of each session of a rank in a directory, the oldest first."""
    firsts: dict[str, Path] = {}
    for path in sorted(directory.glob(f"{_literal(run)}.{rank}.*{SUFFIX}")):
        if (match := _NAME.fullmatch(path.name)) and match["owner"] == f"{run}.{rank}":
            firsts.setdefault(match["stem"], path)
    return sorted(firsts.values(), key=lambda path: path.stat().st_mtime_ns)


def first_paths(paths: Sequence[Path]) -> list[Path]:
    """Return one path per session of those given, in their order."""
    chosen: dict[str, Path] = {}
    for path in paths:
        match = _NAME.fullmatch(path.name)
        chosen.setdefault(str(path.parent / match["stem"]) if match else str(path), path)
    return list(chosen.values())
