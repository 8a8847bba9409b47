"""The bytes of each kind, as version 1.0 wrote them: what is stored must stay readable."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest

import gradwatch_wire as wire

VERSION = bytes([wire.PROTOCOL_MAJOR])
SESSION = bytes(range(16))
BOOT_ID = bytes(range(16, 32))
TIME_NS = 1_700_000_000_123_456_789

ENVELOPES: dict[str, wire.Envelope] = {
    name: wire.Envelope(session=SESSION, seq=seq, low=low, time_ns=TIME_NS, record=record)
    for name, seq, low, record in (
        (
            "HELLO",
            0,
            1,
            wire.Hello(
                run="gpt-ablation.3",
                rank=3,
                world=8,
                host="node-07",
                pid=4242,
                versions={"gradwatch": "0.1.0", "torch": "2.13.0"},
                job="slurm 991, restart 1",
                token="s3cret",
            ),
        ),
        (
            "WELCOME",
            0,
            0,
            wire.Welcome(
                boot_id=BOOT_ID, acked=17, max_record_bytes=1 << 20, proto_min=1, proto_max=2
            ),
        ),
        (
            "MANIFEST",
            1,
            1,
            wire.Manifest(
                manifest_id=1,
                names=("embed.weight", "block.0.é", "head.\U0001d524"),
                numel=wire.Column.pack("<u8", [1 << 40, 1, 0]),
                dtypes=("float32", "bfloat16", "float32"),
                shards=("", "Shard(0) 1/4", ""),
                columns=("l2", "nan"),
                groups={"seed": (1,), "host": (0, 2)},
                order="forward",
            ),
        ),
        (
            "STATS",
            2,
            1,
            wire.Stats(
                manifest_id=1,
                step=1000,
                labels={"point": "before_clip", "scaled": False, "world": 8, "reduction": None},
                scalars={"loss": 2.25, "lr": 1e-4, "loss_scale": float("inf"), "zero": -0.0},
                columns={
                    "l2": wire.Column.pack("<f4", [0.5, float("nan"), 1e-45]),
                    "nan": wire.Column.pack("<u4", [0, 3, 0]),
                },
            ),
        ),
        (
            "STATS, one part of two",
            3,
            1,
            wire.Stats(
                manifest_id=2,
                step=(1 << 53) - 1,
                columns={"l2": wire.Column.pack("<f8", [5e-324])},
                part=1,
                parts=2,
            ),
        ),
        (
            "MANIFEST, with modules",
            6,
            2,
            wire.Manifest(
                manifest_id=3,
                names=("block.0.é",),
                numel=wire.Column.pack("<u8", [4]),
                dtypes=("float32",),
                order="forward",
                modules=("block.0", "héad"),
            ),
        ),
        (
            "MANIFEST, with idle layers",
            8,
            2,
            wire.Manifest(
                manifest_id=4,
                names=("block.0.é",),
                numel=wire.Column.pack("<u8", [4]),
                dtypes=("float32",),
                order="forward",
                frozen=("embed.weight", "héad"),
                unused=("block.1.é",),
            ),
        ),
        (
            "STATS, with activations",
            7,
            2,
            wire.Stats(
                manifest_id=3,
                step=12,
                scalars={"nonfinite_module": 1.0},
                columns={"l2": wire.Column.pack("<f8", [0.5])},
                activations=wire.Column.pack("<f8", [-1.0, float("inf")]),
            ),
        ),
        (
            "GAINS",
            4,
            2,
            wire.Gains(
                step=1000,
                blocks=("block.0", "block.1"),
                norm_type="l2",
                norms=wire.Column.pack("<f8", [0.125, float("nan")]),
            ),
        ),
        (
            "EVENT",
            5,
            2,
            wire.Event(name="skipped_step", step=1001, data={"loss_scale": 32768.0, "by": "amp"}),
        ),
        (
            "BEAT",
            0,
            2,
            wire.Beat(last_step=1001, since_s=2.5, counters={"sent": (1 << 63) - 1, "dropped": 0}),
        ),
        ("BYE", (1 << 63) - 1, 6, wire.Bye(reason="exception")),
        ("ACK", 0, 0, wire.Ack(boot_id=BOOT_ID, acked=6, rewind=True)),
        (
            "ALERT",
            0,
            0,
            wire.Alert(
                alert={
                    "id": "9f2c",
                    "rule": "exploding",
                    "value": float("-inf"),
                    "layers": ["embed.weight", {"name": "head", "steps": [999, 1000, None]}],
                    "resolved": False,
                }
            ),
        ),
        ("REFUSE", 0, 0, wire.Refuse(reason="run 'gpt' is already attached with 4 ranks")),
        (
            "HELLO, with credit, by way of another node",
            0,
            1,
            wire.Hello(run="r", rank=0, world=1, credit=True, relay=True),
        ),
        (
            "HELLO, with what is meant so",
            0,
            1,
            wire.Hello(run="r", rank=0, world=1, expected=("same_batch", "not_learning")),
        ),
        (
            "WELCOME, with a window",
            0,
            0,
            wire.Welcome(boot_id=BOOT_ID, acked=17, window_bytes=65_536),
        ),
        (
            "MANIFEST, with the optimizer and marks of parallel groups",
            9,
            2,
            wire.Manifest(
                manifest_id=5,
                names=("head", "norm"),
                numel=wire.Column.pack("<u8", [4, 2]),
                dtypes=("float32", "float32"),
                columns=("l2", "update_rms", "weight_rms", "unchanged"),
                optimizer="AdamW",
                beta2=wire.Column.pack("<f4", [0.5, float("nan")]),
                marks=("tensor", "shared"),
                meshes={"tensor": wire.Column.pack("<u4", [4, 5])},
            ),
        ),
        (
            "STATS, with the update and what was looked at",
            10,
            2,
            wire.Stats(
                manifest_id=5,
                step=12,
                columns={
                    "l2": wire.Column.pack("<f8", [0.5, 1.0]),
                    "update_rms": wire.Column.pack("<f4", [0.25, 0.0]),
                    "weight_rms": wire.Column.pack("<f4", [2.0, 1.0]),
                    "unchanged": wire.Column.pack("<f4", [0.0, 1.0]),
                },
                last_good_step=8,
                history={
                    "step": wire.Column.pack("<u8", [11, 12]),
                    "loss": wire.Column.pack("<f8", [2.5, 2.25]),
                    "looked_at": wire.Column.pack("<u4", [1, 2]),
                },
                batch="shard-3/17",
            ),
        ),
        (
            "EVENT, with a stack",
            11,
            2,
            wire.Event(name="stack", step=12, text="train.py:41 in step\n  loss.backward()"),
        ),
        (
            "BEAT, of a client that waits",
            0,
            2,
            wire.Beat(last_step=12, shrink=3, waiting_bytes=1_048_576),
        ),
        ("BYE, with the last step", 12, 2, wire.Bye(last_step=12)),
        (
            "ACK, with a window and the rarest records",
            0,
            0,
            wire.Ack(boot_id=BOOT_ID, acked=6, window_bytes=131_072, shrink=3, every=4),
        ),
        ("REDIRECT", 0, 0, wire.Redirect(endpoint="tcp://node-2:5555", reason="node-2 has run r")),
    )
}

# The keys that a reader of version 1 may ask for, and what it must make of the rest.
REQUIRED_ONLY: dict[str, tuple[dict[str, Any], wire.Record]] = {
    "HELLO": ({"run": "r", "rank": 0, "world": 1}, wire.Hello(run="r", rank=0, world=1)),
    "WELCOME": (
        {"boot_id": BOOT_ID},
        wire.Welcome(boot_id=BOOT_ID, acked=0, max_record_bytes=2 << 20, proto_min=1, proto_max=1),
    ),
    "MANIFEST": (
        {"id": 1, "names": ["a"], "numel": ["<u8", 1, bytes(8)], "dtypes": ["float32"]},
        wire.Manifest(
            manifest_id=1,
            names=("a",),
            numel=wire.Column.of("<u8", bytes(8)),
            dtypes=("float32",),
            shards=(),
            columns=(),
            groups={},
            order="registration",
            modules=(),
            frozen=(),
            unused=(),
        ),
    ),
    "STATS": (
        {"manifest": 1, "step": 0},
        wire.Stats(
            manifest_id=1,
            step=0,
            labels={},
            scalars={},
            columns={},
            part=0,
            parts=1,
            activations=None,
        ),
    ),
    "GAINS": (
        {"step": 0, "blocks": [], "norm_type": "l1", "norms": ["<f8", 0, b""]},
        wire.Gains(step=0, blocks=(), norm_type="l1", norms=wire.Column.of("<f8", b"")),
    ),
    "EVENT": ({"name": "mark", "step": 0}, wire.Event(name="mark", step=0, data={})),
    "BEAT": ({}, wire.Beat(last_step=-1, since_s=0.0, counters={})),
    "BYE": ({}, wire.Bye(reason="closed")),
    "ACK": ({"boot_id": BOOT_ID, "acked": 0}, wire.Ack(boot_id=BOOT_ID, acked=0, rewind=False)),
    "ALERT": ({}, wire.Alert(alert={})),
    "REFUSE": ({"reason": ""}, wire.Refuse(reason="")),
    "REDIRECT": ({"endpoint": "x"}, wire.Redirect(endpoint="x", reason="")),
}

KINDS = [kind.name for kind in wire.Kind]


def test_every_kind_has_golden_bytes_of_its_own_number(golden: dict[str, bytes]) -> None:
    numbers = {name: message[2] for name, message in golden.items()}

    assert {kind.name: kind.value for kind in wire.Kind}.items() <= numbers.items()
    assert set(golden) == set(ENVELOPES)
    assert set(REQUIRED_ONLY) == set(KINDS)


@pytest.mark.parametrize("name", ENVELOPES)
def test_encoding_gives_exactly_the_golden_bytes(name: str, golden: dict[str, bytes]) -> None:
    """A record is written today as version 1.0 wrote it."""
    assert golden[name] == wire.encode(ENVELOPES[name])


@pytest.mark.parametrize("name", ENVELOPES)
def test_decoding_the_golden_bytes_gives_the_record(name: str, golden: dict[str, bytes]) -> None:
    assert ENVELOPES[name] == wire.decode(golden[name])


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_without_optional_keys_decodes_to_the_defaults(
    kind: str, golden: dict[str, bytes]
) -> None:
    """A sender that knows only the required keys is understood (rule 1 of evolution)."""
    body, expected = REQUIRED_ONLY[kind]
    envelope = msgpack.unpackb(golden[kind][1:])
    envelope[5] = body

    assert expected == wire.decode(VERSION + msgpack.packb(envelope)).record


@pytest.mark.parametrize("kind", KINDS)
def test_each_required_key_is_missed_by_its_name(kind: str, golden: dict[str, bytes]) -> None:
    body, _ = REQUIRED_ONLY[kind]
    for key in body:
        envelope = msgpack.unpackb(golden[kind][1:])
        envelope[5] = {name: value for name, value in body.items() if name != key}

        with pytest.raises(wire.ProtocolError) as caught:
            wire.decode(VERSION + msgpack.packb(envelope))

        assert ("this key", f"{kind}.{key}") == (caught.value.expected, caught.value.where)


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_keys_are_ignored(kind: str, golden: dict[str, bytes]) -> None:
    """A newer sender's extra keys, of whatever type, change nothing for this reader."""
    envelope = msgpack.unpackb(golden[kind][1:])
    envelope[5] |= {"later": {"nested": [1, b"2", None]}, "": 0.5, "naïve \U0001d524": []}

    assert ENVELOPES[kind] == wire.decode(VERSION + msgpack.packb(envelope))


def test_an_optional_key_of_welcome_comes_after_those_of_version_1_0(
    golden: dict[str, bytes],
) -> None:
    known = ENVELOPES["WELCOME"].record
    assert isinstance(known, wire.Welcome)
    welcome = replace(known, http="http://h:1")
    message = wire.encode(replace(ENVELOPES["WELCOME"], record=welcome))
    old = golden["WELCOME"]
    at = old.index(b"\x85\xa7boot_id")

    assert message == old[:at] + b"\x86" + old[at + 1 :] + b"\xa4http\xaahttp://h:1"
    assert wire.decode(message).record == welcome


def test_numbers_of_any_msgpack_width_are_read(golden: dict[str, bytes]) -> None:
    body = b"\x82\xa9last_step\xd3" + (7).to_bytes(8, "big") + b"\xa7since_s\xca\x3f\x00\x00\x00"
    head = golden["BEAT"].partition(b"\x83\xa9last_step")[0]

    assert wire.Beat(last_step=7, since_s=0.5) == wire.decode(head + body).record
