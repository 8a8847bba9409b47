"""Decoding of messages: STATS and BEAT by msgspec in a third of the time, others by the codec.

A record that msgspec accepts here the codec of the wire accepts, with the same result. A record
that msgspec refuses goes to that codec, which says what is wrong with it.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from gradwatch_wire import PROTOCOL_MAJOR, Beat, Column, Envelope, Kind, Stats, codec
from gradwatch_wire.field_types import FieldType
from gradwatch_wire.limits import (
    MAX_HISTORY,
    MAX_LAYERS,
    MAX_MODULES,
    MAX_NAME_BYTES,
    MAX_RECORD_BYTES,
    MAX_SEQ,
    MAX_TEXT_BYTES,
    SESSION_BYTES,
)
from gradwatch_wire.packed_column import ITEMSIZE
from gradwatch_wire.schema import BY_KIND, REQUIRED


class _Head(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    kind: int
    session: Annotated[bytes, Meta(min_length=SESSION_BYTES, max_length=SESSION_BYTES)]
    seq: Annotated[int, Meta(ge=0, le=MAX_SEQ)]
    low: Annotated[int, Meta(ge=0, le=MAX_SEQ)]
    time_ns: Annotated[int, Meta(ge=0, le=MAX_SEQ)]
    body: msgspec.Raw


def _annotation(type_: FieldType) -> Any:
    """Return the type of msgspec that refuses no value that the field takes."""
    if type_.kind is int:
        return Annotated[int, Meta(ge=type_.low, le=type_.limit)]
    if type_.kind is str:
        return Annotated[str, Meta(max_length=type_.limit)]
    if type_.kind is float:
        return int | float  # an integer is refused, and msgspec would make a float of it
    if type_.item is not None:
        name = Annotated[str, Meta(max_length=MAX_NAME_BYTES)]
        items = dict.__class_getitem__((name, _annotation(type_.item)))
        return Annotated[items, Meta(max_length=type_.limit)]
    if type_.kind is object:
        return Annotated[str, Meta(max_length=MAX_TEXT_BYTES)] | bool | int | float | None
    return type_.kind


def _struct(kind: Kind) -> Any:
    """Return the struct of a kind, its fields named and ordered as those of the record."""
    fields: list[Any] = []
    for field in BY_KIND[kind].fields:
        type_ = _annotation(field.type)
        if field.default is REQUIRED:
            fields.append((field.name, type_))
        elif field.default is None:
            fields.append((field.name, type_ | None, None))
        elif field.default == {}:
            fields.append((field.name, type_, msgspec.field(default_factory=dict)))
        else:
            fields.append((field.name, type_, field.default))
    keys = {field.name: field.key for field in BY_KIND[kind].fields}
    return msgspec.defstruct(f"_{kind.name}", fields, rename=keys, forbid_unknown_fields=True)


_FLOAT: Final = {float}
_NAMES: Final = tuple(field_.name for field_ in BY_KIND[Kind.STATS].fields)
_values: Final = attrgetter(*_NAMES)
_VERSION: Final = bytes([PROTOCOL_MAJOR])
_HEAD: Final = msgspec.msgpack.Decoder(_Head)
_STATS: Final = msgspec.msgpack.Decoder(_struct(Kind.STATS))
_BEAT: Final = msgspec.msgpack.Decoder(_struct(Kind.BEAT))


def decode(message: bytes) -> Envelope:
    """Read a message, as `gradwatch_wire.decode` does.

    Raises:
        ProtocolError: If it is anything but a valid message of this major version.
    """
    if len(message) <= MAX_RECORD_BYTES and message[:1] == _VERSION:
        try:
            head = _HEAD.decode(memoryview(message)[1:])
            record: Stats | Beat | None = None
            if head.kind == Kind.STATS and head.seq and _is_valid(body := _STATS.decode(head.body)):
                record = Stats(**dict(zip(_NAMES, _values(body), strict=True)))
            elif head.kind == Kind.BEAT:
                record = _read_beat(head.body)
            if record is not None:
                return Envelope(
                    session=head.session,
                    seq=head.seq,
                    low=head.low,
                    time_ns=head.time_ns,
                    record=record,
                )
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    return codec.decode(message)


def _read_beat(body: msgspec.Raw) -> Beat | None:
    beat = _BEAT.decode(body)
    if type(beat.since_s) is not float or not "".join(beat.counters).isascii():
        return None
    return Beat(
        last_step=beat.last_step,
        since_s=beat.since_s,
        counters=beat.counters,
        training=beat.training,
        shrink=beat.shrink,
        waiting_bytes=beat.waiting_bytes,
    )


def _is_valid(body: Any) -> bool:
    """Tell whether all holds that the types do not say."""
    outputs, texts = body.activations, map(str, body.labels.values())
    return (
        _are_columns(body.columns, MAX_LAYERS)
        and (not body.history or _are_columns(body.history, MAX_HISTORY))
        and (
            outputs is None or (outputs.code == "<f8" and _are_columns({"": outputs}, MAX_MODULES))
        )
        and {*map(type, body.scalars.values())} <= _FLOAT
        and body.part < body.parts
        # Limits are in bytes, and msgspec counts characters.
        and "".join(
            (*body.columns, *body.history, *body.labels, *body.scalars, *texts, body.batch)
        ).isascii()
    )


def _are_columns(columns: dict[str, Column], limit: int) -> bool:
    """Tell whether columns are of one size, within a limit, and have their bytes."""
    size = None
    for column in columns.values():
        if size is None:
            size = column.size
        if column.size != size or column.code not in ITEMSIZE:
            return False
        if len(column.data) != size * ITEMSIZE[column.code]:
            return False
    return (size or 0) <= limit
