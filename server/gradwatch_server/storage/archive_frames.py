"""The archive of a run as bytes: frames one after another, each with its length and checksum.

A file begins with `MAGIC`. A frame is the length of its body and its CRC-32, four bytes each, the
lowest first, then the body: msgpack of its kind and fields, compressed by zlib. The first one is
the manifest, the last one says how many there are; `docs/export.md` has them all.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, BinaryIO, Final

import msgpack

MAGIC: Final = b"gradwatch archive\n"

VERSION: Final = 1
"""Of what is in the frames. One that is higher is not read."""

MAX_FRAME_BYTES: Final = 256 << 20
"""A frame at most, before it is compressed and after."""

_WORD_BYTES: Final = 4
_PREFIX_BYTES: Final = 2 * _WORD_BYTES


class FrameKind(StrEnum):
    """What a frame has."""

    MANIFEST = "manifest"
    RUN = "run"
    ATTEMPT = "attempt"
    WINDOW = "window"
    LAYERS = "layers"
    CURVES = "curves"
    ALERTS = "alerts"
    LOG = "log"
    NEXT = "next"
    END = "end"


class BadArchiveError(Exception):
    """What is read is no archive, or not what was written."""


def encode_frame(kind: FrameKind, *fields: Any) -> bytes:
    """Return a frame."""
    body = zlib.compress(msgpack.packb([str(kind), *fields]), 1)
    prefix = len(body).to_bytes(_WORD_BYTES, "little")
    return prefix + zlib.crc32(body).to_bytes(_WORD_BYTES, "little") + body


def read_magic(file: BinaryIO) -> None:
    """Read how a file begins.

    Raises:
        BadArchiveError: If it is no archive.
    """
    if file.read(len(MAGIC)) != MAGIC:
        msg = "it is no archive of gradwatch"
        raise BadArchiveError(msg)


def read_frames(file: BinaryIO, max_bytes: int) -> Iterator[tuple[FrameKind, list[Any], int]]:
    """Yield kind and fields of each frame, and where it ends.

    Args:
        file: A file after its beginning.
        max_bytes: What all frames may come to before they were compressed.

    Raises:
        BadArchiveError: If one is not what was written, or all are too much.
    """
    left = max_bytes
    while prefix := file.read(_PREFIX_BYTES):
        length = int.from_bytes(prefix[:_WORD_BYTES], "little")
        if len(prefix) < _PREFIX_BYTES or length > MAX_FRAME_BYTES:
            msg = "it is damaged, or was cut off"
            raise BadArchiveError(msg)
        body = file.read(length)
        checksum = int.from_bytes(prefix[_WORD_BYTES:], "little")
        if len(body) < length or zlib.crc32(body) != checksum:
            msg = "it is damaged, or was cut off"
            raise BadArchiveError(msg)
        plain = _inflate(body, min(left, MAX_FRAME_BYTES))
        left -= len(plain)
        yield *_decode(plain), file.tell()


def _inflate(body: bytes, most: int) -> bytes:
    inflating = zlib.decompressobj()
    try:
        plain = inflating.decompress(body, most + 1)
    except zlib.error as error:
        msg = f"it is damaged: {error}"
        raise BadArchiveError(msg) from error
    if len(plain) > most:
        msg = "it holds more than is allowed; --max-bytes allows more"
        raise BadArchiveError(msg)
    return plain


def _decode(plain: bytes) -> tuple[FrameKind, list[Any]]:
    try:
        kind, *fields = msgpack.unpackb(plain, strict_map_key=False)
        return FrameKind(kind), fields
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        msg = f"it has a frame that this gradwatch cannot read: {error}"
        raise BadArchiveError(msg) from error
