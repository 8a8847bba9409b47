"""Spill files: one session's records on disk, for when its process is killed before they are sent.

A session is a few segments `RUN.RANK.SESSION.NUMBER.spill` in one directory. Each begins with
`MAGIC` and then has frames: length and CRC-32 of the content, both `<u4`, and the content. The
first content is the HELLO as on the wire, each other one a msgpack array `[kind, seq, time_ns,
body]`. A segment also begins with the manifests that its records may refer to, so that older
segments can go. What follows a frame that is cut or damaged is not read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgpack

from gradwatch_wire.codec import decode, encode
from gradwatch_wire.errors import ProtocolError
from gradwatch_wire.limits import MAX_RECORD_BYTES
from gradwatch_wire.records import SEQUENCED, Envelope, Hello, Kind
from gradwatch_wire.session.send_buffer import BufferedRecord

MAGIC: Final = b"gradwatch spill 1\n"

_FRAME: Final = struct.Struct("<II")
_MAX_FRAME_BYTES: Final = 2 * MAX_RECORD_BYTES


class SpillError(ValueError):
    """A file is no spill file; the message says why."""


def pack_header(session: bytes, hello: Hello) -> bytes:
    """Return what every segment begins with. The token is a secret, which is left out."""
    return MAGIC + _pack(encode(Envelope(session=session, record=replace(hello, token=""))))


def pack_record(record: BufferedRecord) -> bytes:
    return _pack(msgpack.packb((record.kind, record.seq, record.time_ns, record.body)))


def _pack(content: bytes) -> bytes:
    return _FRAME.pack(len(content), zlib.crc32(content)) + content


def read_header(path: Path) -> tuple[bytes, Hello]:
    """Return the session that a segment belongs to, and its HELLO.

    Raises:
        SpillError: If it is no spill file.
        OSError: If it cannot be read.
    """
    try:
        envelope = decode(next(_contents(path), b""))
    except ProtocolError as error:
        msg = f"{path}: the beginning of the file is damaged"
        raise SpillError(msg) from error
    if not isinstance(envelope.record, Hello):
        msg = f"{path}: the file does not begin with a HELLO"
        raise SpillError(msg)
    return envelope.session, envelope.record


def read_records(paths: Iterable[Path], first: int) -> Iterator[BufferedRecord]:
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


def _records(path: Path) -> Iterator[BufferedRecord]:
    contents = _contents(path)
    next(contents, None)  # the HELLO
    for content in contents:
        fields: Any = msgpack.unpackb(content, use_list=False)
        match fields:
            case (int(kind), int(seq), int(time_ns), bytes(body)) if kind in SEQUENCED:
                yield BufferedRecord(seq, Kind(kind), time_ns, body)


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
