"""Body of each kind on the wire: one writer and one reader per record class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gradwatch_wire.errors import ProtocolError
from gradwatch_wire.limits import (
    BOOT_ID_BYTES,
    MAX_BLOCKS,
    MAX_COLUMNS,
    MAX_GROUPS,
    MAX_IN_FLIGHT_BYTES,
    MAX_LABELS,
    MAX_LAYERS,
    MAX_MODULES,
    MAX_PARTS,
    MAX_RANKS,
    MAX_RECORD_BYTES,
    MAX_SCALARS,
    MAX_SEQ,
    MAX_STEP,
    MAX_TEXT_BYTES,
)
from gradwatch_wire.names import LayerOrder
from gradwatch_wire.packed_column import Column
from gradwatch_wire.reader import (
    Reader,
    checked_array,
    checked_column,
    checked_float,
    checked_int,
    checked_json,
    checked_label,
    checked_str,
)
from gradwatch_wire.records import (
    Ack,
    Alert,
    Beat,
    Bye,
    Event,
    Gains,
    Hello,
    Kind,
    Manifest,
    Record,
    Refuse,
    Stats,
    Welcome,
)
from gradwatch_wire.shards import parse_shard
from gradwatch_wire.version import PROTOCOL_MAJOR

Body = dict[str, Any]


def _text(value: object, where: str) -> str:
    return checked_str(value, where, MAX_TEXT_BYTES)


def _indices(value: object, where: str) -> tuple[int, ...]:
    items = checked_array(value, where, MAX_LAYERS)
    # All at once: a manifest of 2 MB has 640,000 of them, which took 0.3 s one by one.
    if items and (set(map(type, items)) != {int} or min(items) < 0 or max(items) >= MAX_LAYERS):
        for item in items:
            checked_int(item, where, 0, MAX_LAYERS - 1)
    return items


def _counter(value: object, where: str) -> int:
    return checked_int(value, where, 0, MAX_SEQ)


def _hello(r: Hello) -> Body:
    return {
        "run": r.run,
        "rank": r.rank,
        "world": r.world,
        "host": r.host,
        "pid": r.pid,
        "versions": dict(r.versions),
        "job": r.job,
        "token": r.token,
    }


def _read_hello(b: Reader) -> Hello:
    world = b.integer("world", 1, MAX_RANKS)
    return Hello(
        run=b.name("run"),
        rank=b.integer("rank", 0, world - 1),
        world=world,
        host=b.name("host", ""),
        pid=b.integer("pid", 0, MAX_SEQ, 0),
        versions=b.map("versions", MAX_LABELS, _text),
        job=b.name("job", ""),
        token=b.text("token", ""),
    )


def _welcome(r: Welcome) -> Body:
    body: Body = {
        "boot_id": r.boot_id,
        "acked": r.acked,
        "max_record_bytes": r.max_record_bytes,
        "proto_min": r.proto_min,
        "proto_max": r.proto_max,
    }
    if r.http:
        body["http"] = r.http
    if r.max_in_flight_bytes != MAX_IN_FLIGHT_BYTES:
        body["max_in_flight_bytes"] = r.max_in_flight_bytes
    return body


def _read_welcome(b: Reader) -> Welcome:
    return Welcome(
        boot_id=b.exact_bytes("boot_id", BOOT_ID_BYTES),
        acked=b.integer("acked", 0, MAX_SEQ, 0),
        max_record_bytes=b.integer("max_record_bytes", 1, MAX_SEQ, MAX_RECORD_BYTES),
        proto_min=b.integer("proto_min", 0, 255, PROTOCOL_MAJOR),
        proto_max=b.integer("proto_max", 0, 255, PROTOCOL_MAJOR),
        http=b.name("http", ""),
        max_in_flight_bytes=b.integer("max_in_flight_bytes", 1, MAX_SEQ, MAX_IN_FLIGHT_BYTES),
    )


def _manifest(r: Manifest) -> Body:
    body: Body = {
        "id": r.manifest_id,
        "names": r.names,
        "numel": r.numel,
        "dtypes": r.dtypes,
        "shards": r.shards,
        "columns": r.columns,
        "groups": {name: list(indices) for name, indices in r.groups.items()},
        "order": r.order,
    }
    for key in ("modules", "frozen", "unused"):
        if names := getattr(r, key):
            body[key] = names
    return body


def _read_manifest(b: Reader) -> Manifest:
    names = b.names("names", MAX_LAYERS)
    manifest = Manifest(
        manifest_id=b.integer("id", 1, MAX_SEQ),
        names=names,
        numel=_per_layer(b.column("numel"), len(names), "MANIFEST.numel"),
        dtypes=b.names("dtypes", MAX_LAYERS),
        shards=b.names("shards", MAX_LAYERS, ()),
        columns=b.names("columns", MAX_COLUMNS, ()),
        groups=b.map("groups", MAX_GROUPS, _indices),
        order=b.name("order", LayerOrder.REGISTRATION.value),
        modules=b.names("modules", MAX_MODULES, ()),
        frozen=b.names("frozen", MAX_LAYERS, ()),
        unused=b.names("unused", MAX_LAYERS, ()),
    )
    _check_manifest(manifest)
    return manifest


def _check_manifest(m: Manifest) -> None:
    layers = len(m.names)
    if m.numel.code != "<u8":
        raise ProtocolError(expected="<u8", got=m.numel.code, where="MANIFEST.numel.code")
    for key, items in (("dtypes", m.dtypes), ("shards", m.shards)):
        if len(items) != layers and (items or key == "dtypes"):
            raise ProtocolError(
                expected=f"{layers} items", got=str(len(items)), where=f"MANIFEST.{key}"
            )
    for shard in set(m.shards):
        try:
            parse_shard(shard)
        except ValueError as error:
            raise ProtocolError(
                expected="a shard", got=str(error), where="MANIFEST.shards"
            ) from None
    for group, indices in m.groups.items():
        if max(indices, default=-1) >= layers:
            raise ProtocolError(
                expected=f"indices below {layers}",
                got="a larger one",
                where=f"MANIFEST.groups.{ascii(group)[1:-1]}",
            )
    # Last, when each name is known to have come with its numel: a set is large beside bare names.
    for what, key, names in (("layer", "names", m.names), ("module", "modules", m.modules)):
        if len(set(names)) != len(names):
            raise ProtocolError(
                expected=f"distinct {what} names", got="a repeated one", where=f"MANIFEST.{key}"
            )


def _per_layer(column: Column, layers: int, where: str) -> Column:
    if column.size != layers:
        raise ProtocolError(
            expected=f"a count of {layers}", got=str(column.size), where=f"{where}.count"
        )
    return column


def _stats(r: Stats) -> Body:
    body: Body = {
        "manifest": r.manifest_id,
        "step": r.step,
        "labels": dict(r.labels),
        "scalars": {name: float(value) for name, value in r.scalars.items()},
        "columns": dict(r.columns),
    }
    if r.parts != 1:
        body |= {"part": r.part, "parts": r.parts}
    if r.activations is not None:
        body["activations"] = r.activations
    return body


def _read_stats(b: Reader) -> Stats:
    columns = b.map("columns", MAX_COLUMNS, checked_column)
    counts = {column.size for column in columns.values()}
    if len(counts) > 1:
        raise ProtocolError(
            expected="columns of one count", got="several counts", where="STATS.columns"
        )
    if counts and max(counts) > MAX_LAYERS:
        raise ProtocolError(
            expected=f"at most {MAX_LAYERS} layers", got=str(max(counts)), where="STATS.columns"
        )
    parts = b.integer("parts", 1, MAX_PARTS, 1)
    return Stats(
        manifest_id=b.integer("manifest", 1, MAX_SEQ),
        step=b.integer("step", 0, MAX_STEP),
        labels=b.map("labels", MAX_LABELS, checked_label),
        scalars=b.map("scalars", MAX_SCALARS, checked_float),
        columns=columns,
        part=b.integer("part", 0, parts - 1, 0),
        parts=parts,
        activations=_activations(b),
    )


def _activations(b: Reader) -> Column | None:
    column = b.column("activations", None)
    if column is None:
        return None
    where = "STATS.activations"
    if column.code != "<f8":
        raise ProtocolError(expected="<f8", got=column.code, where=f"{where}.code")
    if column.size > MAX_MODULES:
        raise ProtocolError(
            expected=f"at most {MAX_MODULES} modules", got=str(column.size), where=where
        )
    return column


def _gains(r: Gains) -> Body:
    return {
        "step": r.step,
        "blocks": r.blocks,
        "norm_type": r.norm_type,
        "norms": r.norms,
    }


def _read_gains(b: Reader) -> Gains:
    blocks = b.names("blocks", MAX_BLOCKS)
    return Gains(
        step=b.integer("step", 0, MAX_STEP),
        blocks=blocks,
        norm_type=b.name("norm_type"),
        norms=_per_layer(b.column("norms"), len(blocks), "GAINS.norms"),
    )


def _event(r: Event) -> Body:
    return {"name": r.name, "step": r.step, "data": dict(r.data)}


def _read_event(b: Reader) -> Event:
    return Event(
        name=b.name("name"),
        step=b.integer("step", 0, MAX_STEP),
        data=b.map("data", MAX_LABELS, checked_label),
    )


def _beat(r: Beat) -> Body:
    body = {"last_step": r.last_step, "since_s": float(r.since_s), "counters": dict(r.counters)}
    return body if r.training is None else {**body, "training": r.training}


def _read_beat(b: Reader) -> Beat:
    return Beat(
        last_step=b.integer("last_step", -1, MAX_STEP, -1),
        since_s=b.number("since_s", 0.0),
        counters=b.map("counters", MAX_SCALARS, _counter),
        training=b.flag("training") if b.has("training") else None,
    )


def _ack(r: Ack) -> Body:
    return {"boot_id": r.boot_id, "acked": r.acked, "rewind": r.rewind}


def _read_ack(b: Reader) -> Ack:
    return Ack(
        boot_id=b.exact_bytes("boot_id", BOOT_ID_BYTES),
        acked=b.integer("acked", 0, MAX_SEQ),
        rewind=b.flag("rewind", False),
    )


def _read_alert(b: Reader) -> Alert:
    return Alert(alert=b.map("alert", MAX_SCALARS, checked_json))


WRITERS: Final[dict[type[Record], tuple[Kind, Callable[[Any], Body]]]] = {
    Hello: (Kind.HELLO, _hello),
    Welcome: (Kind.WELCOME, _welcome),
    Manifest: (Kind.MANIFEST, _manifest),
    Stats: (Kind.STATS, _stats),
    Gains: (Kind.GAINS, _gains),
    Event: (Kind.EVENT, _event),
    Beat: (Kind.BEAT, _beat),
    Bye: (Kind.BYE, lambda r: {"reason": r.reason}),
    Ack: (Kind.ACK, _ack),
    Alert: (Kind.ALERT, lambda r: {"alert": dict(r.alert)}),
    Refuse: (Kind.REFUSE, lambda r: {"reason": r.reason}),
}

READERS: Final[dict[int, Callable[[Reader], Record]]] = {
    Kind.HELLO: _read_hello,
    Kind.WELCOME: _read_welcome,
    Kind.MANIFEST: _read_manifest,
    Kind.STATS: _read_stats,
    Kind.GAINS: _read_gains,
    Kind.EVENT: _read_event,
    Kind.BEAT: _read_beat,
    Kind.BYE: lambda b: Bye(reason=b.name("reason", "closed")),
    Kind.ACK: _read_ack,
    Kind.ALERT: _read_alert,
    Kind.REFUSE: lambda b: Refuse(reason=b.text("reason")),
}
