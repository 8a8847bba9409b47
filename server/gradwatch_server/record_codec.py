"""Decoding of messages: STATS by msgspec in a third of the time, all others by the wire's codec.

A STATS record that msgspec accepts here the codec of the wire accepts, with the same result. A
record that msgspec refuses goes to that codec, which says what is wrong with it.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from gradwatch_wire import PROTOCOL_MAJOR, Column, Envelope, Kind, Stats, codec
from gradwatch_wire.limits import (
    MAX_COLUMNS,
    MAX_LABELS,
    MAX_LAYERS,
    MAX_MODULES,
    MAX_NAME_BYTES,
    MAX_PARTS,
    MAX_RECORD_BYTES,
    MAX_SCALARS,
    MAX_SEQ,
    MAX_STEP,
    MAX_TEXT_BYTES,
    SESSION_BYTES,
)
from gradwatch_wire.packed_column import ITEMSIZE

_Number: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_SEQ)]
_Name: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME_BYTES)]
_Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT_BYTES)]


class _Head(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    kind: int
    session: Annotated[bytes, Meta(min_length=SESSION_BYTES, max_length=SESSION_BYTES)]
    seq: Annotated[int, Meta(ge=1, le=MAX_SEQ)]
    low: _Number
    time_ns: _Number
    body: msgspec.Raw


class _Stats(msgspec.Struct, forbid_unknown_fields=True):
    manifest: Annotated[int, Meta(ge=1, le=MAX_SEQ)]
    step: Annotated[int, Meta(ge=0, le=MAX_STEP)]
    columns: Annotated[dict[_Name, Column], Meta(max_length=MAX_COLUMNS)] = {}
    labels: Annotated[
        dict[_Name, _Text | bool | int | float | None], Meta(max_length=MAX_LABELS)
    ] = {}
    # An integer is refused, and msgspec would make a float of it.
    scalars: Annotated[dict[_Name, int | float], Meta(max_length=MAX_SCALARS)] = {}
    part: Annotated[int, Meta(ge=0)] = 0
    parts: Annotated[int, Meta(ge=1, le=MAX_PARTS)] = 1
    activations: Column | None = None


_VERSION: Final = bytes([PROTOCOL_MAJOR])
_HEAD: Final = msgspec.msgpack.Decoder(_Head)
_STATS: Final = msgspec.msgpack.Decoder(_Stats)


def decode(message: bytes) -> Envelope:
    """Read a message, as `gradwatch_wire.decode` does.

    Raises:
        ProtocolError: If it is anything but a valid message of this major version.
    """
    if len(message) <= MAX_RECORD_BYTES and message[:1] == _VERSION:
        try:
            head = _HEAD.decode(memoryview(message)[1:])
            if head.kind == Kind.STATS and _is_valid(body := _STATS.decode(head.body)):
                return Envelope(
                    session=head.session,
                    seq=head.seq,
                    low=head.low,
                    time_ns=head.time_ns,
                    record=Stats(
                        manifest_id=body.manifest,
                        step=body.step,
                        labels=body.labels,
                        scalars=body.scalars,
                        columns=body.columns,
                        part=body.part,
                        parts=body.parts,
                        activations=body.activations,
                    ),
                )
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    return codec.decode(message)


def _is_valid(body: _Stats) -> bool:
    """Tell whether all holds that the types do not say."""
    size = None
    for column in body.columns.values():
        if size is None:
            size = column.size
        if column.size != size or column.code not in ITEMSIZE:
            return False
        if len(column.data) != size * ITEMSIZE[column.code]:
            return False
    for number in body.scalars.values():
        if type(number) is not float:
            return False
    outputs = body.activations
    if outputs is not None and not (
        outputs.code == "<f8"
        and outputs.size <= MAX_MODULES
        and len(outputs.data) == outputs.size * ITEMSIZE["<f8"]
    ):
        return False
    if (size or 0) > MAX_LAYERS or body.part >= body.parts:
        return False
    # Limits are in bytes, and msgspec counts characters.
    texts = map(str, body.labels.values())
    return "".join((*body.columns, *body.labels, *body.scalars, *texts)).isascii()
