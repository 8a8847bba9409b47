"""docs/protocol.md has every key of every body, as the code reads and writes it."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Final

import pytest

import gradwatch_wire as wire
from gradwatch_wire.schema import BY_RECORD
from tests.support.records import manifest_of

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "protocol.md").read_text("utf-8")
END: Final = "\n<!-- To here. -->"
SCRIPT: Final = runpy.run_path(str(ROOT / "scripts" / "wiretables.py"))

NORMS: Final = wire.Column.pack("<f8", [1.0])
MANIFEST: Final = manifest_of(
    ["a"],
    modules=("m",),
    frozen=("b",),
    unused=("c",),
    optimizer="AdamW",
    beta2=NORMS,
    marks=("shared",),
    meshes={"data": wire.Column.pack("<u4", [0])},
)
STATS: Final = wire.Stats(
    manifest_id=1,
    step=0,
    part=1,
    parts=2,
    activations=NORMS,
    last_good_step=0,
    history={"step": wire.Column.pack("<u8", [0])},
    batch="7",
)
FULL: Final[tuple[wire.Record, ...]] = (
    wire.Hello(run="r", rank=0, world=1, credit=True, relay=True, expected=("same_batch",)),
    wire.Welcome(
        boot_id=bytes(16), http="http://127.0.0.1:1", max_in_flight_bytes=1, window_bytes=0
    ),
    MANIFEST,
    STATS,
    wire.Gains(step=0, blocks=("b",), norm_type="l2", norms=NORMS),
    wire.Event(name="stack", step=0, text="def"),
    wire.Beat(training=True, shrink=1, waiting_bytes=1),
    wire.Bye(last_step=0),
    wire.Ack(boot_id=bytes(16), acked=0, window_bytes=0, shrink=1, every=2),
    wire.Alert(alert={}),
    wire.Refuse(reason="why"),
    wire.Redirect(endpoint="tcp://127.0.0.1:1"),
)
"""A record of each kind with every key that may be left out."""


def test_the_tables_are_what_the_readers_ask_for() -> None:
    text = PAGE.partition(SCRIPT["BEGIN"])[2].partition(END)[0]

    assert text.strip() == SCRIPT["tables"]().strip()


@pytest.mark.parametrize("record", FULL, ids=lambda record: type(record).__name__)
def test_every_key_that_is_written_is_in_the_tables(record: wire.Record) -> None:
    schema = BY_RECORD[type(record)]
    section = PAGE.partition(f"### {schema.kind.name}\n")[2].partition("\n##")[0]
    keys = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}

    assert keys == schema.write(record).keys()


def test_limits_and_defaults_are_those_of_the_code() -> None:
    assert "| `rank` | int 0..65535 | required | " in PAGE
    assert "| `shards` | array of at most 32,768 str, each of at most 512 bytes | empty | " in PAGE
    assert "| `training` | bool | absent | " in PAGE
    assert "| `scalars` | map of at most 64 str to float 64 | empty | " in PAGE
