"""Arrays as safetensors, a format that many read: a JSON header, then the bytes of each array.

The header is 8 bytes of length, JSON, and spaces up to a multiple of 8. Arrays of larger items come
first, so that each is aligned. https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from starlette.responses import Response

DTYPES: Final = {"<f8": "F64", "<f4": "F32", "<u4": "U32", "<u2": "U16", "<i8": "I64", "|u1": "U8"}

_NUMPY: Final = {name: dtype for dtype, name in DTYPES.items()}

_PREFIX_BYTES: Final = 8

MEDIA_TYPE: Final = "application/vnd.safetensors"


def encode(arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, Any]) -> bytes:
    """Return arrays and what is known of them; texts stay as they are, all else becomes JSON."""
    header: dict[str, Any] = {
        "__metadata__": {name: _text(value) for name, value in metadata.items()}
    }
    in_order = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    chunks, offset = [], 0
    for name, array in in_order:
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": DTYPES[array.dtype.newbyteorder("<").str],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        chunks.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *chunks])


def decode(body: bytes) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Return the arrays that `encode` was given, and the texts of the metadata.

    Raises:
        ValueError: If it is something else.
    """
    length = int.from_bytes(body[:_PREFIX_BYTES], "little")
    header = json.loads(body[_PREFIX_BYTES : _PREFIX_BYTES + length])
    metadata: dict[str, str] = header.pop("__metadata__", {})
    begin = _PREFIX_BYTES + length
    arrays = {}
    for name, spec in header.items():
        first, last = spec["data_offsets"]
        data = body[begin + first : begin + last]
        arrays[name] = np.frombuffer(data, _NUMPY[spec["dtype"]]).reshape(spec["shape"])
    return arrays, metadata


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


class SafeTensors(Response):
    """An answer of arrays."""

    media_type = MEDIA_TYPE
