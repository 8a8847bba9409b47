"""Mark in a HELLO of a session that is sent from a spill file, after its process has ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gradwatch_wire.records import Hello

_KEY: Final = "spill"
"""In `versions`, which old aggregators ignore: the version of the file's format."""


def as_replayed(hello: Hello) -> Hello:
    return replace(hello, versions={**hello.versions, _KEY: "1"})


def is_replayed(hello: Hello) -> bool:
    return _KEY in hello.versions
