"""Shards as manifests write them."""

from __future__ import annotations

import pytest

from gradwatch_wire.shards import Shard, parse_shard


@pytest.mark.parametrize(
    ("text", "shard"),
    [
        ("", None),
        ("0/1", Shard(0, 1)),
        ("Shard(0) 1/4", Shard(1, 4, "Shard(0)")),
        ("Replicate Shard(1) 65535/65536", Shard(65_535, 65_536, "Replicate Shard(1)")),
    ],
)
def test_what_manifests_write_is_read(text: str, shard: Shard | None) -> None:
    assert parse_shard(text) == shard
    assert shard is None or str(shard) == text


@pytest.mark.parametrize(
    "text",
    ["x", "Shard(0)", "4/4", "0/0", "-1/4", "01/4", "1/4 Shard(0)", "0/65537", "٣/٤", " 0/1"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a shard is '' or like"):
        parse_shard(text)
