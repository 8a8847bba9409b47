"""The kinds of record, as frozen values. The codec knows how they lie on the wire.

Rules of evolution, which the golden bytes in `tests/wire` hold us to:

1. A new key is optional and has a default; an old reader ignores it.
2. A removed key is never used again for something else.
3. No key changes its type or its unit.
4. What an old reader would misread needs a new `PROTOCOL_MAJOR`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from gradwatch_wire.limits import MAX_IN_FLIGHT_BYTES, MAX_RECORD_BYTES
from gradwatch_wire.names import LayerOrder
from gradwatch_wire.packed_column import Column
from gradwatch_wire.value import value
from gradwatch_wire.version import PROTOCOL_MAJOR


class Kind(IntEnum):
    """The number of each kind on the wire."""

    HELLO = 1
    WELCOME = 2
    MANIFEST = 3
    STATS = 4
    GAINS = 5
    EVENT = 6
    BEAT = 7
    BYE = 8
    ACK = 9
    ALERT = 10
    REFUSE = 11
    REDIRECT = 12


SEQUENCED = frozenset({Kind.MANIFEST, Kind.STATS, Kind.GAINS, Kind.EVENT, Kind.BYE})
"""Kinds that carry a sequence number, are logged, and are acknowledged."""

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
LabelValue: TypeAlias = "str | bool | int | float | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A client opens or resumes its session.

    Args:
        run: Name of the run.
        rank: Global rank, 0 to `world - 1`.
        world: Number of ranks the launcher started.
        host: Host name, for people.
        pid: Process id on that host.
        versions: Name of a part (`gradwatch`, `torch`, `python`, `protocol_minor`) to version.
        job: Identity of the launch (scheduler's job id and restart count, or where its ranks meet),
            empty when unknown. Up to the first `/` it is that of the launches before and after it.
        token: Write token, empty when none is asked for.
        credit: Whether the client keeps to windows in bytes (`window_bytes`).
        relay: Whether the owner of the run cannot be reached from the client, so that the node
            that it greets is to relay.
        expected: Signs of a bug that are meant so, of `SilentBug`; those that are not known do not
            matter.
    """

    run: str
    rank: int
    world: int
    host: str = ""
    pid: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    job: str = ""
    token: str = ""
    credit: bool = False
    relay: bool = False
    expected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The aggregator accepts a session and says how far it has stored it.

    Args:
        boot_id: 16 bytes, new at each start of the aggregator.
        acked: Highest sequence number below which nothing is missing; 0 for a new session.
        max_record_bytes: Largest record it reads.
        proto_min: Oldest protocol major it reads.
        proto_max: Newest protocol major it reads.
        http: Where it answers HTTP, as it is bound: `http://0.0.0.0:8420` is any address that
            reaches it. Empty if it does not say.
        max_in_flight_bytes: Records that the client may have sent and not acknowledged, one at
            least, where it does not keep to windows.
        window_bytes: Bytes of records after `acked` that it may have sent and not acknowledged,
            each with `RECORD_OVERHEAD_BYTES` beside its body; absent where it does not keep to
            windows.
    """

    boot_id: bytes
    acked: int = 0
    max_record_bytes: int = MAX_RECORD_BYTES
    proto_min: int = PROTOCOL_MAJOR
    proto_max: int = PROTOCOL_MAJOR
    http: str = ""
    max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES
    window_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Meaning of the columns of the STATS that name it.

    Args:
        manifest_id: Counts from 1 in its session.
        names: Layer names as in the user's own model, in `order`.
        numel: `<u8`, elements of each layer's whole gradient, however it is sharded.
        dtypes: Gradient dtype of each layer, as torch spells it without `torch.`.
        shards: The shard of each layer that this rank holds, such as `Shard(0) 1/4` (see
            `shards`), `""` for a whole tensor; empty: all whole.
        columns: Names of the columns that STATS may carry.
        groups: Named parameter group to indices into `names`.
        order: `forward` when seen from the first backward pass, else `registration`.
        modules: Names of the modules whose outputs are measured, in order of registration; empty:
            none are.
        frozen: Of the layers that earlier manifests of the session named and this one does not,
            those whose parameter has `requires_grad` off.
        unused: Likewise those that the optimizer trains, whose parameter has it on, and that no
            backward pass reached. What is in neither list is not known.
        optimizer: Name of the optimizer's class, empty where it is not known.
        beta2: One per layer: decay of the second moment, NaN where the optimizer has none.
        marks: How each layer lies on the ranks: `tensor`, `expert`, `shared`, or `""`; empty: not
            known.
        meshes: Dimension in which the job is parallel, such as `tensor`, `pipeline`, `data` or
            `expert`, to the ranks of this rank's group in it.
    """

    manifest_id: int
    names: tuple[str, ...]
    numel: Column
    dtypes: tuple[str, ...]
    shards: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    order: str = LayerOrder.REGISTRATION.value
    modules: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    optimizer: str = ""
    beta2: Column | None = None
    marks: tuple[str, ...] = ()
    meshes: Mapping[str, Column] = field(default_factory=dict)


@value(kw_only=True)
class Stats:
    """One rank's gradient statistics at one step.

    Args:
        manifest_id: The manifest whose layers the columns follow.
        step: Optimizer step, from 0.
        labels: What the numbers are: `point`, `scaled`, `reduction`, `path`.
        scalars: Numbers of the whole step by name: `loss`, `batch_size`, `lr`, `loss_scale`,
            `local_probe`, `step_time_s`; `collections` since the last record, if several, and then
            `first_nonfinite_step`, NaN if there was none. `local_probe` and
            `first_nonfinite_loss` are then of the first collection of that step that was bad, of
            the last one if none was. `nonfinite_module`, if an output was non-finite that is not
            so in good steps, is the place in the manifest of the module that returned the first
            such, NaN if that is not known; of several collections `nonfinite_module_step` is its
            step.
        columns: Column name to one number per layer of the manifest. `l2`, `l1`, `linf`, `zeros`,
            `nans`, `infs` are of this step; `l2_max` and `l2_mean` over the collections since the
            last record; `local_l2` of this rank's gradient before the ranks were reduced, negative
            where it is not known.
        part: Which of `parts` records of this step this is, from 0 (several optimizers).
        parts: How many records this rank sends per step.
        activations: `<f8`, one per module of the manifest: the largest magnitude in its outputs
            since the last record, NaN if there was a NaN, else Inf if there was one; -1
            (`NOT_SEEN`) of a module that was not seen to return anything. Without it no modules
            are watched.
        last_good_step: The newest step before this one that was inspected and finite, -1 if none
            was or that is not known.
        history: Numbers of each step since the last record and before this one, columns of one
            count: `step`; `loss` with `has_loss`, 0 where none was given, unless all have one; `lr`
            and `step_time_s`, NaN where they are not known; `skipped`, 1 where the update was; and
            `looked_at`: 0 where a step was not inspected, 1 by a sentinel, 2 in full.
        batch: Identity of the batch of the step, as the user gave it.
    """

    manifest_id: int
    step: int
    labels: Mapping[str, LabelValue] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, Column] = field(default_factory=dict)
    part: int = 0
    parts: int = 1
    activations: Column | None = None
    last_good_step: int = -1
    history: Mapping[str, Column] = field(default_factory=dict)
    batch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """Norms of the loss gradient at the outputs of consecutive blocks.

    Args:
        step: Optimizer step, from 0.
        blocks: Block names, input side first.
        norm_type: `l2`, `l1`, `linf` or `mean`.
        norms: `<f8`, one per block, NaN where none was recorded.
    """

    step: int
    blocks: tuple[str, ...]
    norm_type: str
    norms: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something discrete: a skipped step, a link, a mark of the user.

    Args:
        name: What happened: `skipped_step`, `stack`, `pace` (how often is measured from here on, in
            words in `text`), or any other, which is counted.
        step: The step it belongs to.
        data: Details, flat.
        text: A longer text, such as a Python stack.
    """

    name: str
    step: int
    data: Mapping[str, LabelValue] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A sign of life between records.

    Args:
        last_step: Last collected step, -1 before the first.
        since_s: Seconds since it was collected; before the first, since the attach.
        counters: The client's own counters.
        training: Whether the model is in training mode; absent if it does not say.
        shrink: The newest number of a smaller window that the client obeys (see ACK).
        waiting_bytes: Size of the next record, if it waits for a wider window.
    """

    last_step: int = -1
    since_s: float = 0.0
    counters: Mapping[str, int] = field(default_factory=dict)
    training: bool | None = None
    shrink: int = 0
    waiting_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bye:
    """The client's last record.

    Args:
        reason: `closed` or `exception`.
        last_step: The last step that has ended, whether or not it was measured; -1 if there was
            none or that is not known.
    """

    reason: str = "closed"
    last_step: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """All records up to `acked` are committed.

    Args:
        boot_id: As in WELCOME; another one than before means that the aggregator restarted.
        acked: Highest sequence number below which nothing is missing.
        rewind: The client is to send again from `acked + 1`.
        window_bytes: As in WELCOME; absent where the client does not keep to windows.
        shrink: Number of the newest window that took back what was granted before. What it took
            back is free once the next BEAT has this number.
        every: The largest number of steps between two records of any live rank of the attempt.
    """

    boot_id: bytes
    acked: int
    rewind: bool = False
    window_bytes: int | None = None
    shrink: int = 0
    every: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert of the client's own run, as the HTTP API gives it, non-finite numbers as floats."""

    alert: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Why the aggregator does not take a session or a message; the client logs it and stops."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """Another node owns the run: the client is to greet that one.

    Args:
        endpoint: Where it takes records in.
        reason: Why, for people.
    """

    endpoint: str
    reason: str = ""


Record: TypeAlias = (
    Hello
    | Welcome
    | Manifest
    | Stats
    | Gains
    | Event
    | Beat
    | Bye
    | Ack
    | Alert
    | Refuse
    | Redirect
)


@value(kw_only=True)
class Envelope:
    """A record with its place in its session.

    Args:
        session: 16 bytes, new per `attach`.
        seq: From 1 over the sequenced kinds, 0 for the others.
        low: The lowest sequence number that the client can still supply; 0 from the aggregator.
        time_ns: Sender's wall clock, for people; nothing is decided by it.
        record: The body.
    """

    session: bytes
    record: Record
    seq: int = 0
    low: int = 0
    time_ns: int = 0
