"""The peer of the ingest benchmark: a loop that receives and unpacks, and keeps nothing.

It answers like the aggregator, so that the same senders can talk to it: WELCOME to a HELLO, and an
ACK per session after each batch. It neither checks the schema nor stores, merges or evaluates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgpack
import zmq

from benchmarks.harness import Pipe
from gradwatch_server.ingest.inbox import BATCH_BYTES, BATCH_MESSAGES
from gradwatch_server.ingest.socket import SOCKET_OPTIONS
from gradwatch_wire import Ack, Envelope, Kind, Record, Welcome, encode
from gradwatch_wire.limits import MAX_LAYERS, MAX_RECORD_BYTES, MAX_TEXT_BYTES

BOOT_ID: Final = bytes(16)
UNPACK: Final = {
    "raw": False,
    "use_list": False,
    "strict_map_key": True,
    "max_array_len": MAX_LAYERS,
    "max_map_len": 256,
    "max_str_len": MAX_TEXT_BYTES,
    "max_bin_len": MAX_RECORD_BYTES,
    "max_ext_len": 0,
}
"""What the codec gives to msgpack, without the hooks that call back into Python."""


def run_bare(_job: None, pipe: Pipe) -> None:
    """Bind, tell the parent where, receive until it says stop, report how many came."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(zmq.ROUTER)
        for option, value in SOCKET_OPTIONS.items():
            socket.setsockopt(option, value)
        socket.bind("tcp://127.0.0.1:*")
        pipe.send(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        received = 0
        while not pipe.poll():
            if socket.poll(50):
                received += _batch(socket)
        pipe.send(received)
    finally:
        context.destroy(linger=0)


def _batch(socket: zmq.Socket[bytes]) -> int:
    """Take a batch as the aggregator does, and acknowledge it; return its sequenced records."""
    received = 0
    acked: dict[bytes, tuple[bytes, int]] = {}
    for peer, (kind, session, seq, *_) in _messages(socket):
        if kind == Kind.HELLO:
            _reply(socket, peer, session, Welcome(boot_id=BOOT_ID))
        else:
            received += 1
            acked[session] = peer, seq
    for session, (peer, seq) in acked.items():
        _reply(socket, peer, session, Ack(boot_id=BOOT_ID, acked=seq))
    return received


def _messages(socket: zmq.Socket[bytes]) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
    size = 0
    for _ in range(BATCH_MESSAGES):
        try:
            peer, message = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        yield peer, msgpack.unpackb(memoryview(message)[1:], **UNPACK)
        size += len(message)
        if size > BATCH_BYTES:
            return


def _reply(socket: zmq.Socket[bytes], peer: bytes, session: bytes, record: Record) -> None:
    socket.send_multipart([peer, encode(Envelope(session=session, record=record))], zmq.NOBLOCK)
