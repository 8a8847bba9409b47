"""Records to bytes and back.

A message is one frame: one byte, the protocol major, and a msgpack array
`[kind, session, seq, low, time_ns, body]`. Typical use::

    message = encode(Envelope(session=session, seq=1, low=1, record=Bye()))
    envelope = decode(message)

Decoding raises `ProtocolError` and nothing else, in memory of at most 40 times the input and a
constant.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from gradwatch_wire.errors import ProtocolError, describe
from gradwatch_wire.field_types import checked_bytes, checked_int
from gradwatch_wire.limits import (
    MAX_CONTAINERS,
    MAX_LAYERS,
    MAX_RECORD_BYTES,
    MAX_SEQ,
    MAX_STACK_BYTES,
    SESSION_BYTES,
)
from gradwatch_wire.records import SEQUENCED, Envelope, Kind, Record
from gradwatch_wire.schema import BY_KIND, BY_RECORD
from gradwatch_wire.version import PROTOCOL_MAJOR

_VERSION: Final = bytes([PROTOCOL_MAJOR])
_HEADER: Final = _VERSION + b"\x96"  # and a msgpack array of 6
_HEAD_BYTES: Final = 64  # more than the array's header, kind and session take


def encode_body(record: Record) -> tuple[Kind, bytes]:
    """Return a record's kind and its packed body, which stays the same when it is sent again."""
    schema = BY_RECORD[type(record)]
    return schema.kind, msgpack.packb(schema.write(record))


def join(kind: int, session: bytes, seq: int, low: int, time_ns: int, body: bytes) -> bytes:
    """Return the message of an already packed body: `low` moves on while a record waits."""
    head: bytes = msgpack.packb((kind, session, seq, low, time_ns))
    return b"".join((_HEADER, head[1:], body))  # without the header of an array of 5


def encode(envelope: Envelope) -> bytes:
    """Return a message."""
    record, schema = envelope.record, BY_RECORD[type(envelope.record)]
    head = schema.kind, envelope.session, envelope.seq, envelope.low, envelope.time_ns
    packed: bytes = msgpack.packb((*head, schema.write(record)))
    return _VERSION + packed


def decode(message: bytes, *, max_record_bytes: int = MAX_RECORD_BYTES) -> Envelope:
    """Read a message, from a socket, a log or a spill file.

    Args:
        message: What `encode` returned.

    Raises:
        ProtocolError: If it is anything but a valid message of this major version.
    """
    if not message:
        raise ProtocolError(expected="one frame", got="none or several", where="message")
    if message[:1] != _VERSION:
        raise ProtocolError(
            expected=f"protocol version {PROTOCOL_MAJOR}",
            got=f"version {message[0]}",
            where="message.version",
        )
    if len(message) > max_record_bytes:
        raise ProtocolError(
            expected=f"at most {max_record_bytes} bytes", got=describe(message), where="message"
        )
    fields = _unpack(memoryview(message)[1:])
    if not isinstance(fields, tuple) or len(fields) != 6:
        raise ProtocolError(expected="an array of 6", got=describe(fields), where="envelope")
    kind, session, seq, low, time_ns, body = fields
    schema = BY_KIND.get(kind) if type(kind) is int else None
    if schema is None:
        raise ProtocolError(
            expected=f"a kind 1..{max(Kind)}", got=describe(kind), where="envelope.kind"
        )
    return Envelope(
        session=checked_bytes(session, "envelope.session", SESSION_BYTES),
        seq=checked_int(seq, "envelope.seq", 1 if kind in SEQUENCED else 0, MAX_SEQ),
        low=checked_int(low, "envelope.low", 0, MAX_SEQ),
        time_ns=checked_int(time_ns, "envelope.time_ns", 0, MAX_SEQ),
        record=schema.read(body),
    )


def session_of(message: bytes) -> bytes:
    """Return the session that a message names, whatever else is wrong with it.

    Where none can be read it is 16 zero bytes.
    """
    return place_of(message)[0]


def place_of(message: bytes) -> tuple[bytes, int]:
    """Return the session that a message names, as `session_of` does, and its sequence number.

    The number is 0 where there is none.
    """
    session = bytes(SESSION_BYTES)
    parser = msgpack.Unpacker(max_buffer_size=_HEAD_BYTES, max_bin_len=SESSION_BYTES)
    parser.feed(message[1:_HEAD_BYTES])
    try:
        parser.read_array_header()
        parser.skip()  # the kind
        session = checked_bytes(parser.unpack(), "envelope.session", SESSION_BYTES)
        return session, checked_int(parser.unpack(), "envelope.seq", 0, MAX_SEQ)
    except Exception:  # noqa: BLE001 - as in `_unpack`: the bytes are foreign
        return session, 0


class _ContainerCount:
    """Stops the parser at the first container too many, before a small record grows large."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_CONTAINERS

    def __call__(self, container: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ProtocolError(
                expected=f"at most {MAX_CONTAINERS} arrays and maps", got="more", where="envelope"
            )
        return container


def _refuse_ext(code: int, _data: bytes) -> None:
    # An empty one slips past max_ext_len, as a tuple.
    raise ProtocolError(expected="no extension type", got=f"type {code}", where="envelope")


def _check_complete(array: memoryview) -> None:
    # `unpackb` makes room for an array by its header alone, so 3 kB of nested headers would take
    # 80 MB. Skipping makes no objects, and fails where a promised item is not there.
    parser = msgpack.Unpacker(max_buffer_size=len(array) or 1)
    parser.feed(array)
    parser.skip()


def _unpack(array: memoryview) -> Any:
    count = _ContainerCount()
    try:
        _check_complete(array)
        return msgpack.unpackb(
            array,
            raw=False,
            use_list=False,
            strict_map_key=True,
            list_hook=count,
            object_hook=count,
            ext_hook=_refuse_ext,
            max_array_len=MAX_LAYERS,
            max_map_len=256,
            max_str_len=MAX_STACK_BYTES,
            max_bin_len=MAX_RECORD_BYTES,
            max_ext_len=0,
        )
    except ProtocolError:
        raise
    except Exception as error:
        # msgpack raises ValueError and its kin, TypeError and OverflowError, and may add more:
        # whatever it is, the bytes are foreign, and must not stop their reader.
        what = str(error).partition("\n")[0][:120] or type(error).__name__
        raise ProtocolError(expected="valid msgpack", got=what, where="envelope") from error
