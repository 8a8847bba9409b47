"""Codec of state: dataclasses to plain data and back, arrays bit for bit.

The only code that saves state of the judge: a dataclass with typed fields is all that it needs.
"""

from __future__ import annotations

from collections import deque
from typing import Any, TypeVar, get_args, get_origin

import msgspec
import numpy as np

from gradwatch_server.core.packing import pack, unpack

T = TypeVar("T")

_FLOAT32 = "float32"


def encode(state: object) -> Any:
    """Return a dataclass as data that msgpack encodes."""
    return msgspec.to_builtins(state, enc_hook=_encode, builtin_types=(bytes,))


def decode(plain: Any, kind: type[T]) -> T:
    """Return the dataclass that `encode` was given.

    Raises:
        ValueError: If the data are not those of such a dataclass.
    """
    return msgspec.convert(plain, kind, dec_hook=_decode)


def _encode(value: object) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype == np.float32:
            return [_FLOAT32, list(value.shape), value.tobytes()]
        return pack(value)
    if isinstance(value, deque):
        return [value.maxlen, list(value)]
    msg = f"no way to save a {type(value).__name__}"
    raise NotImplementedError(msg)


def _decode(kind: Any, plain: Any) -> Any:
    origin = get_origin(kind) or kind
    if origin is np.ndarray:
        code, shape, data = plain
        if code == _FLOAT32:
            return np.frombuffer(data, "<f4").reshape(shape).copy()
        return np.array(unpack(plain), dtype=get_args(get_args(kind)[1])[0])
    if origin is deque:
        longest, items = plain
        return deque(items, longest)
    msg = f"no way to read a {kind}"
    raise NotImplementedError(msg)
