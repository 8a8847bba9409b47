"""Codec of state: dataclasses to bytes and back, arrays bit for bit.

A class of the state is a dataclass whose fields are all that outlives a restart. Attributes that
`__post_init__` sets beside the fields are computed again and never saved.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self, TypeVar, get_args, get_origin

import msgspec
import numpy as np

from gradwatch_server.core.packing import pack, unpack

T = TypeVar("T")

_CHECKSUM_BYTES: Final = 4


class Shared(ABC):
    """Base of what several objects refer to: it is saved once, and is one object again.

    Attributes:
        STATE: Dataclass of its saved form.
    """

    __slots__ = ()
    STATE: ClassVar[type]

    @abstractmethod
    def to_state(self) -> object:
        """Return the `STATE` to be saved."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: Any) -> Self:
        """Return what `to_state` described."""


def encode(state: object) -> bytes:
    """Return a dataclass as a checksum and msgpack: what is shared, then all the rest."""
    writer = _Writer()
    body = msgspec.msgpack.encode(state, enc_hook=writer.encode)
    whole = msgspec.msgpack.encode([writer.shared, msgspec.Raw(body)])
    return zlib.crc32(whole).to_bytes(_CHECKSUM_BYTES, "little") + whole


def decode(data: bytes | memoryview, kind: type[T]) -> T:
    """Return the dataclass that `encode` was given.

    Raises:
        ValueError: If the data are damaged, or not those of such a dataclass.
    """
    whole = memoryview(data)[_CHECKSUM_BYTES:]
    if zlib.crc32(whole) != int.from_bytes(data[:_CHECKSUM_BYTES], "little"):
        msg = f"{len(data)} bytes have another checksum"
        raise ValueError(msg)
    shared, body = _WHOLE.decode(whole)
    return msgspec.msgpack.decode(body, type=kind, dec_hook=_SharedReader(shared).decode)


_WHOLE: Final = msgspec.msgpack.Decoder(tuple[list[msgspec.Raw], msgspec.Raw])


@dataclass(slots=True)
class _Writer:
    shared: list[msgspec.Raw] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)  # by the id of a shared object

    def encode(self, value: object) -> Any:
        if isinstance(value, np.ndarray):
            return pack(value)
        if isinstance(value, deque):
            return [value.maxlen, list(value)]
        if isinstance(value, Shared):
            if id(value) not in self._numbers:
                self._numbers[id(value)] = len(self.shared)
                body = msgspec.msgpack.encode(value.to_state(), enc_hook=self.encode)
                self.shared.append(msgspec.Raw(body))
            return self._numbers[id(value)]
        msg = f"no way to save a {type(value).__name__}"
        raise NotImplementedError(msg)


@dataclass(slots=True)
class _SharedReader:
    shared: list[msgspec.Raw]
    _made: dict[int, Shared] = field(default_factory=dict)

    def decode(self, kind: Any, plain: Any) -> Any:
        origin = get_origin(kind) or kind
        if origin is object:
            return plain
        if origin is np.ndarray:
            return np.array(unpack(plain), dtype=get_args(get_args(kind)[1])[0])
        if origin is deque:
            longest, items = plain
            converted = msgspec.convert(items, list[get_args(kind)[0]], dec_hook=self.decode)  # type: ignore[misc]  # known at run time
            return deque(converted, longest)
        if issubclass(origin, Shared):
            if plain not in self._made:
                body = self.shared[plain]
                state = msgspec.msgpack.decode(body, type=origin.STATE, dec_hook=self.decode)
                self._made[plain] = origin.from_state(state)
            return self._made[plain]
        msg = f"no way to read a {kind}"
        raise NotImplementedError(msg)
