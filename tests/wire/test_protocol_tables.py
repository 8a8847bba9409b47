"""docs/protocol.md has every key of every body, as the code reads and writes it."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Final

import pytest

import gradwatch_wire as wire
from gradwatch_wire.bodies import WRITERS
from tests.support.records import manifest_of

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "protocol.md").read_text("utf-8")
END: Final = "\n<!-- To here. -->"
SCRIPT: Final = runpy.run_path(str(ROOT / "scripts" / "wiretables.py"))

NORMS: Final = wire.Column.pack("<f8", [1.0])
MANIFEST: Final = manifest_of(["a"], modules=("m",), frozen=("b",), unused=("c",))
STATS: Final = wire.Stats(manifest_id=1, step=0, part=1, parts=2, activations=NORMS)
FULL: Final[tuple[wire.Record, ...]] = (
    wire.Hello(run="r", rank=0, world=1),
    wire.Welcome(boot_id=bytes(16), http="http://127.0.0.1:1", max_in_flight_bytes=1),
    MANIFEST,
    STATS,
    wire.Gains(step=0, blocks=("b",), norm_type="l2", norms=NORMS),
    wire.Event(name="skipped_step", step=0),
    wire.Beat(training=True),
    wire.Bye(),
    wire.Ack(boot_id=bytes(16), acked=0),
    wire.Alert(alert={}),
    wire.Refuse(reason="why"),
)
"""A record of each kind with every key that may be left out."""


def test_the_tables_are_what_the_readers_ask_for() -> None:
    text = PAGE.partition(SCRIPT["BEGIN"])[2].partition(END)[0]

    assert text.strip() == SCRIPT["tables"]().strip()


@pytest.mark.parametrize("record", FULL, ids=lambda record: type(record).__name__)
def test_every_key_that_is_written_is_in_the_tables(record: wire.Record) -> None:
    kind, write = WRITERS[type(record)]
    section = PAGE.partition(f"### {kind.name}\n")[2].partition("\n##")[0]
    keys = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}

    assert keys == write(record).keys()


def test_limits_and_defaults_are_those_of_the_code() -> None:
    assert "| `rank` | int 0..65535 | required | " in PAGE
    assert "| `shards` | array of at most 32,768 str, each of at most 512 bytes | empty | " in PAGE
    assert "| `training` | bool | absent | " in PAGE
    assert "| `scalars` | map of at most 64 str to float 64 | empty | " in PAGE
