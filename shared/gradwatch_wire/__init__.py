"""The wire: records, codec, limits and the health vocabulary that client and aggregator share.

It knows neither torch nor ZeroMQ; msgpack is all it needs.
"""

from gradwatch_wire.codec import decode, encode, encode_body, join, session_of
from gradwatch_wire.errors import ProtocolError
from gradwatch_wire.packed_column import Column
from gradwatch_wire.records import (
    SEQUENCED,
    Ack,
    Alert,
    Beat,
    Bye,
    Envelope,
    Event,
    Gains,
    Hello,
    Json,
    Kind,
    Manifest,
    Record,
    Redirect,
    Refuse,
    Stats,
    Welcome,
)
from gradwatch_wire.version import PROTOCOL_MAJOR, __version__

__all__ = [
    "PROTOCOL_MAJOR",
    "SEQUENCED",
    "Ack",
    "Alert",
    "Beat",
    "Bye",
    "Column",
    "Envelope",
    "Event",
    "Gains",
    "Hello",
    "Json",
    "Kind",
    "Manifest",
    "ProtocolError",
    "Record",
    "Redirect",
    "Refuse",
    "Stats",
    "Welcome",
    "__version__",
    "decode",
    "encode",
    "encode_body",
    "join",
    "session_of",
]
