"""Spill files: one session's records on disk, for when its process is killed before they are sent.

A session is a few segments `RUN.RANK.SESSION.NUMBER.spill` in one directory. Each begins with
`MAGIC` and then has frames: length and CRC-32 of the content, both `<u4`, and the content. The
first content is the HELLO as on the wire, each other one a msgpack array `[kind, seq, time_ns,
body]`. A segment also begins with the manifests that its records may refer to, so that older
segments can go. What follows a frame that is cut or damaged is not read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgpack

from gradwatch_wire.codec import decode_record, encode
from gradwatch_wire.errors import ProtocolError
from gradwatch_wire.limits import MAX_RECORD_BYTES
from gradwatch_wire.records import SEQUENCED, Envelope, Hello

MAGIC: Final = b"gradwatch spill 1\n"
SUFFIX: Final = ".spill"

_FRAME: Final = struct.Struct("<II")
_MAX_FRAME_BYTES: Final = 2 * MAX_RECORD_BYTES
_NAME: Final = re.compile(r"(?P<stem>(?P<owner>.+\.\d+)\.[0-9a-f]{32})\.\d{6,}" + re.escape(SUFFIX))


class SpillError(ValueError):
    """A file is no spill file; the message says why."""


class Spilled(NamedTuple):
    """A sequenced record as it lies on disk."""

    seq: int
    kind: int
    time_ns: int
    body: bytes


def stem_of(run: str, rank: int, session: bytes) -> str:
    """Return what the names of a session's segments begin with."""
    return f"{run}.{rank}.{session.hex()}"


def segment_name(stem: str, number: int) -> str:
    """Return the name of a segment; they sort in order."""
    return f"{stem}.{number:06d}{SUFFIX}"


def pack_header(session: bytes, hello: Hello) -> bytes:
    """Return what every segment begins with. The token is a secret of the door: it is left out."""
    return MAGIC + _pack(encode(Envelope(session=session, record=replace(hello, token="")))[1])


def pack_record(record: Spilled) -> bytes:
    """Return a record's frame."""
    return _pack(msgpack.packb((record.kind, record.seq, record.time_ns, record.body)))


def _pack(content: bytes) -> bytes:
    return _FRAME.pack(len(content), zlib.crc32(content)) + content


def read_records(paths: Iterable[Path], first: int) -> Iterator[Spilled]:
    """Yield the records of segments from number *first* on, in order, each once.

    A segment that is gone or damaged is passed over from there on.
    """
    for path in paths:
        try:
            for record in _records(path):
                if record.seq >= first:
                    yield record
                    first = record.seq + 1
        except (OSError, ValueError):  # ValueError: content that is no msgpack
            continue


def _records(path: Path) -> Iterator[Spilled]:
    contents = _contents(path)
    next(contents, None)  # the HELLO
    for content in contents:
        fields: Any = msgpack.unpackb(content, use_list=False)
        match fields:
            case (int(kind), int(seq), int(time_ns), bytes(body)) if kind in SEQUENCED:
                yield Spilled(seq, kind, time_ns, body)


def _contents(path: Path) -> Iterator[bytes]:
    """Yield the contents of frames up to the first one that is cut or damaged."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            msg = f"{path} is no spill file of gradwatch, or of another version"
            raise SpillError(msg)
        while len(head := file.read(_FRAME.size)) == _FRAME.size:
            size, checksum = _FRAME.unpack(head)
            content = file.read(size) if size <= _MAX_FRAME_BYTES else b""
            if len(content) != size or zlib.crc32(content) != checksum:
                return
            yield content


@dataclass(frozen=True, slots=True)
class SpilledSession:
    """A session on disk.

    Args:
        paths: Its segments, oldest first.
        session: Its id.
        hello: What it said, or would have said, to the aggregator.
    """

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
        try:
            greeting = decode_record(next(_contents(path), b""))
        except ProtocolError as error:
            msg = f"{path}: the beginning of the file is damaged"
            raise SpillError(msg) from error
        if not isinstance(greeting.record, Hello):
            msg = f"{path}: the file does not begin with a HELLO"
            raise SpillError(msg)
        match = _NAME.fullmatch(path.name)
        paths = tuple(_segments(path.parent, match["stem"])) if match else (path,)
        return cls(paths, greeting.session, greeting.record)

    def records(self, first: int) -> Iterator[Spilled]:
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


class SessionLock:
    """The right to write or to replay a session's files, held by one process at a time.

    It ends with the process, however that ends, and is not inherited by forks.
    """

    _held: Final[set[Path]] = set()  # by this process, which locks of its own do not keep out

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, directory: Path, session: bytes) -> SessionLock | None:
        """Lock a session's files; None if another one holds them.

        Raises:
            OSError: If the directory cannot be written.
        """
        path = directory.resolve() / f"{session.hex()}.lock"
        if path in cls._held:
            return None
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        cls._held.add(path)
        return cls(path, descriptor)

    def release(self, *, remove: bool) -> None:
        """Give it back; *remove* its file once the session's are gone."""
        if remove:
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._descriptor)
        self._held.discard(self._path)


def first_paths(paths: Sequence[Path]) -> list[Path]:
    """Return one path per session of those given, in their order."""
    chosen: dict[str, Path] = {}
    for path in paths:
        match = _NAME.fullmatch(path.name)
        chosen.setdefault(str(path.parent / match["stem"]) if match else str(path), path)
    return list(chosen.values())
