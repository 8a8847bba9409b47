"""Schema of the bodies: one table of fields for each kind, by which bodies are written and read.

The aggregator makes its quick reader from the same tables, and docs/protocol.md is written from
them. A key that came after version 1.0 has a default, and is written only where it says more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gradwatch_wire.errors import ProtocolError, describe
from gradwatch_wire.field_types import (
    COLUMN,
    FLAG,
    FLOAT,
    INDICES,
    JSON,
    LABEL,
    FieldType,
    binary,
    integer,
    map_of,
    names,
    text,
)
from gradwatch_wire.limits import (
    BOOT_ID_BYTES,
    MAX_BATCH_BYTES,
    MAX_BLOCKS,
    MAX_COLUMNS,
    MAX_GROUPS,
    MAX_HISTORY,
    MAX_IN_FLIGHT_BYTES,
    MAX_LABELS,
    MAX_LAYERS,
    MAX_MESHES,
    MAX_MODULES,
    MAX_PARTS,
    MAX_RANKS,
    MAX_RECORD_BYTES,
    MAX_SCALARS,
    MAX_STACK_BYTES,
    MAX_STEP,
    MAX_TEXT_BYTES,
)
from gradwatch_wire.names import LayerOrder
from gradwatch_wire.packed_column import Column
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
    Redirect,
    Refuse,
    Stats,
    Welcome,
)
from gradwatch_wire.shards import parse_shard
from gradwatch_wire.version import PROTOCOL_MAJOR

REQUIRED: Final = object()
"""Default of a key that has to be there."""

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """A key of a body.

    Args:
        default: Value of the record where the key is missing; `REQUIRED` if it has to be there.
            Where it is None, nil stands for a missing key.
        is_late: Whether it came after version 1.0, so that the default is not written.
    """

    key: str
    type: FieldType
    default: Any = REQUIRED
    is_late: bool = False
    attribute: str = ""

    @property
    def name(self) -> str:
        return self.attribute or self.key


class Schema:
    """Fields of a kind."""

    def __init__(
        self,
        kind: Kind,
        record: type[Record],
        *fields: Field,
        check: Callable[[Any], None] = lambda _: None,
    ) -> None:
        self.kind, self.record, self.fields, self.check = kind, record, fields, check
        self._rows = tuple(
            (field.key, field.name, field.type.read, field.type.write, field.default, field.is_late)
            for field in fields
        )

    def write(self, record: Record) -> Body:
        """Return the body of a record."""
        body: Body = {}
        for key, name, _, write, default, is_late in self._rows:
            value = getattr(record, name)
            if not is_late or value != default:
                body[key] = write(value)
        return body

    def read(self, body: object) -> Record:
        """Return the record of a body; keys that are not known are ignored.

        Raises:
            ProtocolError: If it is none of this kind.
        """
        kind = self.kind.name
        if not isinstance(body, dict):
            raise ProtocolError(expected="a map", got=describe(body), where=kind)
        values: dict[str, Any] = {}
        for key, name, read, _, default, _ in self._rows:
            value = body.get(key, default)
            if value is default:
                if value is REQUIRED:
                    where = f"{kind}.{key}"
                    raise ProtocolError(expected="this key", got="nothing", where=where)
                values[name] = {} if default == {} else default
            else:
                values[name] = read(value, f"{kind}.{key}")
        record = self.record(**values)
        self.check(record)
        return record


def _check_hello(hello: Hello) -> None:
    if hello.rank >= hello.world:
        expected = f"an integer 0..{hello.world - 1}"
        raise ProtocolError(expected=expected, got=describe(hello.rank), where="HELLO.rank")


def _check_manifest(m: Manifest) -> None:
    layers = len(m.names)
    _check_count(m.numel, layers, "MANIFEST.numel")
    if m.numel.code != "<u8":
        raise ProtocolError(expected="<u8", got=m.numel.code, where="MANIFEST.numel.code")
    if m.beta2 is not None:
        _check_count(m.beta2, layers, "MANIFEST.beta2")
    for key, items in (("dtypes", m.dtypes), ("shards", m.shards), ("marks", m.marks)):
        if len(items) != layers and (items or key == "dtypes"):
            raise ProtocolError(
                expected=f"{layers} items", got=str(len(items)), where=f"MANIFEST.{key}"
            )
    _check_shards(m.shards)
    for group, indices in m.groups.items():
        if max(indices, default=-1) >= layers:
            raise ProtocolError(
                expected=f"indices below {layers}",
                got="a larger one",
                where=f"MANIFEST.groups.{ascii(group)[1:-1]}",
            )
    # Last, when each name is known to have come with its numel: a set is large beside bare names.
    for what, key, items in (("layer", "names", m.names), ("module", "modules", m.modules)):
        if len(set(items)) != len(items):
            raise ProtocolError(
                expected=f"distinct {what} names", got="a repeated one", where=f"MANIFEST.{key}"
            )


def _check_shards(shards: tuple[str, ...]) -> None:
    for shard in set(shards):
        try:
            parse_shard(shard)
        except ValueError as error:
            raise ProtocolError(
                expected="a shard", got=str(error), where="MANIFEST.shards"
            ) from None


def _check_stats(stats: Stats) -> None:
    _check_table(stats.columns, "STATS.columns", MAX_LAYERS, "layers")
    _check_table(stats.history, "STATS.history", MAX_HISTORY, "steps")
    if stats.part >= stats.parts:
        expected = f"an integer 0..{stats.parts - 1}"
        raise ProtocolError(expected=expected, got=describe(stats.part), where="STATS.part")
    outputs, where = stats.activations, "STATS.activations"
    if outputs is not None and outputs.code != "<f8":
        raise ProtocolError(expected="<f8", got=outputs.code, where=f"{where}.code")
    if outputs is not None and outputs.size > MAX_MODULES:
        raise ProtocolError(
            expected=f"at most {MAX_MODULES} modules", got=str(outputs.size), where=where
        )


def _check_table(columns: Any, where: str, limit: int, rows: str) -> None:
    counts = {column.size for column in columns.values()}
    if len(counts) > 1:
        raise ProtocolError(expected="columns of one count", got="several counts", where=where)
    if counts and max(counts) > limit:
        raise ProtocolError(expected=f"at most {limit} {rows}", got=str(max(counts)), where=where)


def _check_gains(gains: Gains) -> None:
    _check_count(gains.norms, len(gains.blocks), "GAINS.norms")


def _check_count(column: Column, count: int, where: str) -> None:
    if column.size != count:
        raise ProtocolError(
            expected=f"a count of {count}", got=str(column.size), where=f"{where}.count"
        )


_NAME: Final = text()
_TEXT: Final = text(MAX_TEXT_BYTES)
_BOOT_ID: Final = binary(BOOT_ID_BYTES)
_STEP: Final = integer(0, MAX_STEP)
_NEW: Final = True  # a key that came after version 1.0

SCHEMAS: Final[tuple[Schema, ...]] = (
    Schema(
        Kind.HELLO,
        Hello,
        Field("run", _NAME),
        Field("rank", integer(0, MAX_RANKS - 1)),
        Field("world", integer(1, MAX_RANKS)),
        Field("host", _NAME, ""),
        Field("pid", integer(), 0),
        Field("versions", map_of(MAX_LABELS, _TEXT), {}),
        Field("job", _NAME, ""),
        Field("token", _TEXT, ""),
        Field("credit", FLAG, False, _NEW),
        Field("relay", FLAG, False, _NEW),
        Field("expected", names(MAX_LABELS), (), _NEW),
        check=_check_hello,
    ),
    Schema(
        Kind.WELCOME,
        Welcome,
        Field("boot_id", _BOOT_ID),
        Field("acked", integer(), 0),
        Field("max_record_bytes", integer(1), MAX_RECORD_BYTES),
        Field("proto_min", integer(0, 255), PROTOCOL_MAJOR),
        Field("proto_max", integer(0, 255), PROTOCOL_MAJOR),
        Field("http", _NAME, "", _NEW),
        Field("max_in_flight_bytes", integer(1), MAX_IN_FLIGHT_BYTES, _NEW),
        Field("window_bytes", integer(), None, _NEW),
    ),
    Schema(
        Kind.MANIFEST,
        Manifest,
        Field("id", integer(1), attribute="manifest_id"),
        Field("names", names(MAX_LAYERS)),
        Field("numel", COLUMN),
        Field("dtypes", names(MAX_LAYERS)),
        Field("shards", names(MAX_LAYERS), ()),
        Field("columns", names(MAX_COLUMNS), ()),
        Field("groups", map_of(MAX_GROUPS, INDICES), {}),
        Field("order", _NAME, LayerOrder.REGISTRATION.value),
        Field("modules", names(MAX_MODULES), (), _NEW),
        Field("frozen", names(MAX_LAYERS), (), _NEW),
        Field("unused", names(MAX_LAYERS), (), _NEW),
        Field("optimizer", _NAME, "", _NEW),
        Field("beta2", COLUMN, None, _NEW),
        Field("marks", names(MAX_LAYERS), (), _NEW),
        Field("meshes", map_of(MAX_MESHES, COLUMN), {}, _NEW),
        check=_check_manifest,
    ),
    Schema(
        Kind.STATS,
        Stats,
        Field("manifest", integer(1), attribute="manifest_id"),
        Field("step", _STEP),
        Field("labels", map_of(MAX_LABELS, LABEL), {}),
        Field("scalars", map_of(MAX_SCALARS, FLOAT), {}),
        Field("columns", map_of(MAX_COLUMNS, COLUMN), {}),
        Field("part", integer(0, MAX_PARTS - 1), 0, _NEW),
        Field("parts", integer(1, MAX_PARTS), 1, _NEW),
        Field("activations", COLUMN, None, _NEW),
        Field("last_good_step", integer(-1, MAX_STEP), -1, _NEW),
        Field("history", map_of(MAX_COLUMNS, COLUMN), {}, _NEW),
        Field("batch", text(MAX_BATCH_BYTES), "", _NEW),
        check=_check_stats,
    ),
    Schema(
        Kind.GAINS,
        Gains,
        Field("step", _STEP),
        Field("blocks", names(MAX_BLOCKS)),
        Field("norm_type", _NAME),
        Field("norms", COLUMN),
        check=_check_gains,
    ),
    Schema(
        Kind.EVENT,
        Event,
        Field("name", _NAME),
        Field("step", _STEP),
        Field("data", map_of(MAX_LABELS, LABEL), {}),
        Field("text", text(MAX_STACK_BYTES), "", _NEW),
    ),
    Schema(
        Kind.BEAT,
        Beat,
        Field("last_step", integer(-1, MAX_STEP), -1),
        Field("since_s", FLOAT, 0.0),
        Field("counters", map_of(MAX_SCALARS, integer()), {}),
        Field("training", FLAG, None, _NEW),
        Field("shrink", integer(), 0, _NEW),
        Field("waiting_bytes", integer(), 0, _NEW),
    ),
    Schema(
        Kind.BYE,
        Bye,
        Field("reason", _NAME, "closed"),
        Field("last_step", integer(-1, MAX_STEP), -1, _NEW),
    ),
    Schema(
        Kind.ACK,
        Ack,
        Field("boot_id", _BOOT_ID),
        Field("acked", integer()),
        Field("rewind", FLAG, False),
        Field("window_bytes", integer(), None, _NEW),
        Field("shrink", integer(), 0, _NEW),
        Field("every", integer(1, MAX_STEP), 1, _NEW),
    ),
    Schema(Kind.ALERT, Alert, Field("alert", map_of(MAX_SCALARS, JSON), {})),
    Schema(Kind.REFUSE, Refuse, Field("reason", _TEXT)),
    Schema(Kind.REDIRECT, Redirect, Field("endpoint", _NAME), Field("reason", _TEXT, "")),
)
"""Schema of each kind, in the order of their numbers."""

BY_KIND: Final[dict[int, Schema]] = {int(own.kind): own for own in SCHEMAS}
BY_RECORD: Final[dict[type[Record], Schema]] = {own.record: own for own in SCHEMAS}
