"""What the tests of the wire share: the golden bytes, and a comparison by bits."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def golden() -> dict[str, bytes]:
    """One message per kind as version 1.0 wrote them; the files never change.

    Keys that came later have messages and a file of their own.
    """
    messages: dict[str, str] = {}
    for path in sorted(GOLDEN.glob("*.json")):
        messages |= json.loads(path.read_text(encoding="utf-8"))
    return {name: bytes.fromhex(digits) for name, digits in messages.items()}


@pytest.fixture(scope="session")
def bits() -> Callable[[Any], Any]:
    """A function that turns a record into nested values which are equal when all bits are."""
    return _bits


def _bits(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = [(f.name, _bits(getattr(value, f.name))) for f in dataclasses.fields(value)]
        return (type(value).__name__, fields)
    if isinstance(value, Mapping):
        return {key: _bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [_bits(item) for item in value])
    if isinstance(value, float):
        return ("float", struct.pack("<d", value))
    return (type(value).__name__, value)
