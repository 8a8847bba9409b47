"""Entries of the log as bytes: a kind, a session and a payload, whatever the store is.

A record stays as it came over the wire, byte by byte, so that what this version cannot name is
not lost.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Final, TypeAlias, cast

import msgpack
import zstandard

from gradwatch_server.core.alerting.silences import Silence
from gradwatch_server.core.entries import (
    Acknowledged,
    BeatProgress,
    Beats,
    Began,
    Body,
    BudgetsSet,
    Entry,
    Forgotten,
    FramesClosed,
    Gap,
    Lost,
    ManifestsDropped,
    Opened,
    Received,
    Request,
    Resumed,
    RulesSet,
    SilenceAdded,
    SilenceRemoved,
    Tick,
)
from gradwatch_server.record_codec import decode
from gradwatch_server.storage.rows import LogEntry
from gradwatch_wire import (
    SEQUENCED,
    Bye,
    Envelope,
    Event,
    Gains,
    Hello,
    Kind,
    Manifest,
    Stats,
    encode,
)
from gradwatch_wire.value import value

# Kinds of the aggregator's own entries, far above those of the wire.
_GAP, _LOST, _TICK, _RULES, _FORGOTTEN = 101, 102, 103, 104, 105
_BEGAN = 111
_ACKNOWLEDGED, _SILENCE_ADDED, _SILENCE_REMOVED = 121, 122, 123
_BEATS, _RESUMED, _BUDGETS, _FRAMES_CLOSED, _MANIFESTS_DROPPED = 106, 107, 108, 109, 110

HEAD_KINDS: Final = frozenset(
    {
        *(int(Kind.HELLO), int(Kind.MANIFEST)),
        *(_BEGAN, _RULES, _BUDGETS, _SILENCE_ADDED, _SILENCE_REMOVED),
    }
)
"""Kinds that the rest of a log cannot be read without."""

LEVEL: Final = -5
"""Level of zstd: a tenth of the bytes where eight ranks send the same columns, in 1 us a record."""

RECORD_KINDS: Final = {
    Manifest: Kind.MANIFEST,
    Stats: Kind.STATS,
    Gains: Kind.GAINS,
    Event: Kind.EVENT,
    Bye: Kind.BYE,
}
"""The records that are logged, by class: the wire has more than one way to write a number."""


@value()
class EncodedEntry:
    """An entry as a store keeps it.

    Args:
        kind: What it is, as an integer that stays for good.
    """

    received_ns: int
    kind: int
    session: bytes | None
    payload: bytes | None


NumberedEntry: TypeAlias = tuple[int, EncodedEntry]
"""An entry with its number in the log of its run."""


def pack_entries(entries: Sequence[NumberedEntry]) -> bytes:
    """Return entries, packed as a whole: what ranks say of a step is mostly the same."""
    plain = [
        (number, entry.received_ns, entry.kind, entry.session, entry.payload)
        for number, entry in entries
    ]
    packed: bytes = zstandard.ZstdCompressor(level=LEVEL).compress(msgpack.packb(plain))
    return packed


def unpack_entries(body: bytes) -> list[NumberedEntry]:
    """Return the entries that were packed.

    Raises:
        Exception: Of any kind if they are damaged.
    """
    plain = msgpack.unpackb(zstandard.ZstdDecompressor().decompress(body), use_list=False)
    return [(number, EncodedEntry(*rest)) for number, *rest in plain]


def encode_entry(line: LogEntry) -> EncodedEntry:
    return EncodedEntry(line.entry.received_ns, *_encode_body(line))


def _encode_body(line: LogEntry) -> tuple[int, bytes | None, bytes | None]:
    match line.entry.body:
        case Received(envelope) if line.raw is not None:
            return RECORD_KINDS[type(envelope.record)], envelope.session, line.raw
        case Opened(session, hello):
            # The token lets a client in; it is a secret, and no fact of the run.
            message = line.raw if line.raw and not hello.token else _hello_message(session, hello)
            return Kind.HELLO, session, message
        case Gap(session, first, last):
            return _GAP, session, msgpack.packb((first, last))
        case Lost(session):
            return _LOST, session, None
        case ManifestsDropped(session, limit):
            return _MANIFESTS_DROPPED, session, msgpack.packb(limit)
        case Received():
            msg = f"a record needs the bytes it came as: {line.entry.body!r:.80}"
            raise AssertionError(msg)
        case Acknowledged() | SilenceAdded() | SilenceRemoved() as request:
            kind, payload = _encode_request(request)
            return kind, None, payload
        case _ as notice:
            return _encode_notice(notice)


Notice: TypeAlias = (
    Beats | Resumed | Tick | Began | RulesSet | BudgetsSet | Forgotten | FramesClosed
)
"""Entries of no session that nobody asked for."""


def _encode_notice(notice: Notice) -> tuple[int, None, bytes | None]:
    match notice:
        case Beats(progress):
            return _BEATS, None, msgpack.packb([_plain(each) for each in progress])
        case Resumed():
            return _RESUMED, None, None
        case Tick():
            return _TICK, None, None
        case Began():
            parts = (notice.attempts, notice.rules, notice.budgets, notice.silences)
            return _BEGAN, None, msgpack.packb(parts)
        case RulesSet(rules):
            return _RULES, None, rules.encode()
        case BudgetsSet(budgets):
            return _BUDGETS, None, budgets.encode()
        case Forgotten(run, attempts):
            return _FORGOTTEN, None, msgpack.packb((run, attempts))
        case FramesClosed(run, attempt, limit):
            return _FRAMES_CLOSED, None, msgpack.packb((run, attempt, limit))


def _encode_request(request: Request) -> tuple[int, bytes]:
    match request:
        case Acknowledged():
            return _ACKNOWLEDGED, json.dumps(asdict(request)).encode()
        case SilenceAdded(silence):
            return _SILENCE_ADDED, json.dumps(asdict(silence)).encode()
        case SilenceRemoved(silence_id):
            return _SILENCE_REMOVED, silence_id.encode()


def _plain(progress: BeatProgress) -> tuple[bytes, int, float, bool | None]:
    return progress.session, progress.last_step, progress.since_s, progress.training


def _hello_message(session: bytes, hello: Hello) -> bytes:
    return encode(Envelope(session=session, record=replace(hello, token="")))


def decode_entry(encoded: EncodedEntry) -> Entry:
    """Return the entry that was encoded.

    Raises:
        Exception: Of any kind if it is damaged.
    """
    # What a damaged row holds may be of another type than it should be; it fails on the way.
    session, payload = cast("bytes", encoded.session), cast("bytes", encoded.payload)
    return Entry(encoded.received_ns, _decode_body(encoded.kind, session, payload))


def _decode_body(kind: int, session: bytes, payload: bytes) -> Body:
    if kind == Kind.HELLO:
        return Opened(session, cast("Hello", decode(payload).record))
    if kind in SEQUENCED:
        return Received(decode(payload))
    if kind == _GAP:
        first, last = msgpack.unpackb(payload)
        return Gap(session, first, last)
    if kind == _LOST:
        return Lost(session)
    if kind == _MANIFESTS_DROPPED:
        return ManifestsDropped(session, msgpack.unpackb(payload))
    if kind in (_ACKNOWLEDGED, _SILENCE_ADDED, _SILENCE_REMOVED):
        return _decode_request(kind, payload)
    return _decode_notice(kind, payload)


def _decode_notice(kind: int, payload: bytes) -> Notice:
    if kind == _BEATS:
        return Beats(tuple(BeatProgress(*part[:4]) for part in msgpack.unpackb(payload)))
    if kind == _RESUMED:
        return Resumed()
    if kind == _TICK:
        return Tick()
    if kind == _BEGAN:
        attempts, rules, budgets, silences = msgpack.unpackb(payload)
        return Began(attempts, rules, budgets, tuple(silences))
    if kind == _RULES:
        return RulesSet(_checked(payload))
    if kind == _BUDGETS:
        return BudgetsSet(_checked(payload))
    if kind == _FORGOTTEN:
        run, attempts = msgpack.unpackb(payload)
        return Forgotten(run, attempts)
    if kind == _FRAMES_CLOSED:
        return FramesClosed(*msgpack.unpackb(payload))
    msg = f"kind {kind} is not known to this version"
    raise ValueError(msg)


def _decode_request(kind: int, payload: bytes) -> Request:
    if kind == _ACKNOWLEDGED:
        return Acknowledged(**json.loads(payload))
    if kind == _SILENCE_ADDED:
        return SilenceAdded(Silence(**json.loads(payload)))
    return SilenceRemoved(payload.decode())


def _checked(payload: bytes) -> str:
    """Return a JSON text; damage is found where the entry is read, not where it is applied."""
    json.loads(payload)
    return payload.decode()
