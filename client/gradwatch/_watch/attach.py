"""`attach`: checks the arguments, finds out where it is, starts the sender."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from gradwatch._faults import Faults, logger
from gradwatch._layers.layers import (
    Group,
    Layer,
    Patterns,
    find_blocks,
    find_groups,
    find_layers,
)
from gradwatch._recording.config import WatchConfig
from gradwatch._statistics.statistics import COLUMNS
from gradwatch._transport.keys import find_key
from gradwatch._transport.protocol import Protocol
from gradwatch._transport.sender import Sender
from gradwatch._transport.spill import MIN_SPILL_BYTES, SPILL_BYTES, Spill, find_directory
from gradwatch._watch.identity import Identity, find_endpoint, find_identity, is_disabled
from gradwatch._watch.null import NullWatch
from gradwatch._watch.watch import Watch
from gradwatch_wire import Hello, Json, __version__
from gradwatch_wire.limits import MAX_NAME_BYTES, SESSION_BYTES
from gradwatch_wire.version import PROTOCOL_MINOR

BUFFER_BYTES: Final = 32 << 20
MIN_BUFFER_BYTES: Final = 1 << 16


def attach(
    model: nn.Module | Mapping[str, nn.Module],
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    run: str | None = None,
    endpoint: str | None = None,
    keys: str | os.PathLike[str] | None = None,
    every: int = 1,
    groups: Mapping[str, Group] | None = None,
    include: Patterns = None,
    exclude: Patterns = None,
    scaler: GradScaler | None = None,
    blocks: Sequence[nn.Module] | nn.ModuleList | nn.Sequential | None = None,
    columns: Sequence[str] | None = None,
    report_every: int = 1,
    local: bool = False,
    on_alert: Callable[[dict[str, Json]], object] | None = None,
    buffer_bytes: int = BUFFER_BYTES,
    spill: str | os.PathLike[str] | None = None,
    spill_bytes: int = SPILL_BYTES,
) -> Watch | NullWatch:
    """Watch the gradients of a model while it trains.

    Call it once per training process, after the model is wrapped (DDP, `torch.compile`) and
    `torch.distributed` is initialised. It starts one background thread and returns; it does not
    wait for the aggregator, which may start later, stop and come back.

    Args:
        model: The model, or a dict of named models (a GAN's two, say).
        optimizer: Its optimizer or optimizers; each step is collected just before it is taken,
            unless `Watch.collect` was called before. None: only `collect` collects.
        run: Name of the run, the same on all ranks. Default: `GRADWATCH_RUN`, else the launcher's
            job id, else, in a single process, a generated one.
        endpoint: Where the aggregator listens. Default: `GRADWATCH_ENDPOINT`, else
            `tcp://127.0.0.1:5555`.
        keys: The key file, made by `gradwatch keys`, for an aggregator that asks who sends.
            Default: `GRADWATCH_KEYS`, else none.
        every: Optimizer steps between collections.
        groups: Names of parameter groups to patterns (`fnmatch` style, on the layer's name) or
            parameters.
        include: Patterns of the layers to watch. Default: all.
        exclude: Patterns of the layers not to watch.
        scaler: The `GradScaler` in use, so that the gradients are reported unscaled, and steps
            that it skips are. Its `step` is wrapped on this one object.
        blocks: Consecutive modules, input side first, whose output-gradient gains to watch; see
            `GradientGainMonitor`.
        columns: Statistics to collect, of `l2`, `l1`, `linf`, `zeros`, `nans`, `infs`; `l2` always.
            Default: those that come for free, which is all of them on CUDA with Triton, else `l2`
            with NaN and Inf counted where the norm shows some.
        report_every: Collections per record. With several, the record has the last one's numbers,
            and the largest and the mean norm of each layer over all of them.
        local: Also measure each layer's gradient on this rank before DDP reduces it, so that a bad
            rank has a name. Costs a norm per parameter in the backward pass.
        on_alert: Called with each alert of this run, in the background thread.
        buffer_bytes: Memory for records that wait for their acknowledgement. When it is full the
            oldest give way and are counted.
        spill: Directory for records that are not acknowledged yet, so that they outlive this
            process and an outage longer than `buffer_bytes`. What an earlier process of this run
            and rank left there is sent first. Default: `GRADWATCH_SPILL`, else none.
        spill_bytes: Disk space that this process may take there. When it is taken the oldest
            records give way and are counted.

    Returns:
        The watch; one that does nothing if `GRADWATCH_DISABLED` is set.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If an argument is out of range or does not fit the model or the environment.
            Nothing else is raised, and nothing at all after this.
    """
    if is_disabled():
        return NullWatch()
    optimizers = _checked_optimizers(optimizer)
    _check_arguments(every, report_every, scaler, on_alert, buffer_bytes)
    _check_count("spill_bytes", spill_bytes, MIN_SPILL_BYTES)
    layers = find_layers(model, include, exclude)
    _check_membership(optimizers, layers)
    modules = [model] if isinstance(model, nn.Module) else list(model.values())
    identity = find_identity(run)
    plan = WatchConfig(
        modules=modules,
        layers=layers,
        groups=find_groups(groups, layers),
        optimizers=optimizers,
        scaler=scaler if scaler is not None and scaler.is_enabled() else None,
        blocks=find_blocks(blocks, model),
        columns=_checked_columns(columns),
        every=every,
        report_every=report_every,
        reduction=_find_reduction(modules, identity.world),
        distributed=identity.world > 1,
        local=bool(local),
    )
    faults = Faults()
    target, key = find_endpoint(endpoint), find_key(keys)
    session, hello, directory = os.urandom(SESSION_BYTES), _hello(identity), find_directory(spill)
    files = Spill(directory, session, hello, spill_bytes, faults) if directory else None
    protocol = Protocol(session, hello, buffer_bytes, files)
    sender = Sender(protocol, target, faults, on_alert, key, files)
    watch = Watch(plan, sender, faults)
    sender.start()
    logger.info(
        "gradwatch: run %s, rank %d of %d, %d layers, to %s",
        identity.run,
        identity.rank,
        identity.world,
        len(layers),
        target,
    )
    return watch


def _hello(identity: Identity) -> Hello:
    return Hello(
        run=identity.run,
        rank=identity.rank,
        world=identity.world,
        host=_short(socket.gethostname()),
        pid=os.getpid(),
        job=_short(identity.job),
        versions={
            "gradwatch": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "protocol_minor": str(PROTOCOL_MINOR),
        },
    )


def _short(text: str) -> str:
    """Cut a text of the system's to what the wire takes."""
    return text.encode("utf-8", "replace")[:MAX_NAME_BYTES].decode("utf-8", "ignore")


def _find_reduction(modules: Sequence[nn.Module], world: int) -> str:
    """Return how the ranks' gradients are put together by the end of the backward pass."""
    wrappers: list[type] = [nn.parallel.DistributedDataParallel]
    parts = [part for module in modules for part in module.modules()]
    # Before anyone has imported FSDP, no module is one.
    if (fsdp := sys.modules.get("torch.distributed.fsdp")) is not None:
        wrappers.append(fsdp.FSDPModule)
        if any(isinstance(part, fsdp.FullyShardedDataParallel) for part in parts):
            # Its shards do not say of which layer they are which part.
            msg = (
                "model: FullyShardedDataParallel cannot be watched; "
                "use torch.distributed.fsdp.fully_shard"
            )
            raise ValueError(msg)
    if any(isinstance(part, tuple(wrappers)) for part in parts):
        return "mean"
    return "none" if world == 1 else "unknown"


def _checked_optimizers(optimizer: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer]:
    if optimizer is None:
        return []
    given: Sequence[object] = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    optimizers: list[Optimizer] = []
    for item in given:
        if not isinstance(item, Optimizer):
            msg = f"optimizer: a torch.optim.Optimizer or a list of them, got {type(item).__name__}"
            raise TypeError(msg)
        optimizers.append(item)
    if len({id(item) for item in optimizers}) < len(optimizers):
        msg = "optimizer: one of them is given twice"
        raise ValueError(msg)
    return optimizers


def _check_arguments(
    every: object, report_every: object, scaler: object, on_alert: object, buffer_bytes: object
) -> None:
    _check_count("every", every, 1)
    _check_count("report_every", report_every, 1)
    _check_count("buffer_bytes", buffer_bytes, MIN_BUFFER_BYTES)
    if scaler is not None and not isinstance(scaler, GradScaler):
        msg = f"scaler: a torch.amp.GradScaler, got {type(scaler).__name__}"
        raise TypeError(msg)
    if on_alert is not None and not callable(on_alert):
        msg = f"on_alert: a function of one alert, got {type(on_alert).__name__}"
        raise TypeError(msg)


def _checked_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    given = [columns] if isinstance(columns, str) else list(columns)
    unknown = [name for name in given if name not in COLUMNS]
    if unknown:
        msg = f"columns: some of {', '.join(COLUMNS)}, got {unknown[0]!r}"
        raise ValueError(msg)
    return tuple(name for name in COLUMNS if name in given or name == "l2")


def _check_count(name: str, value: object, least: int) -> None:
    if type(value) is not int:
        msg = f"{name}: a whole number, got {value!r}"
        raise TypeError(msg)
    if value < least:
        msg = f"{name}: at least {least}, got {value}"
        raise ValueError(msg)


def _check_membership(optimizers: Sequence[Optimizer], layers: Sequence[Layer]) -> None:
    watched = {id(layer.parameter) for layer in layers}
    for number, optimizer in enumerate(optimizers):
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not own & watched:
            which = f"optimizer {number}" if len(optimizers) > 1 else "optimizer"
            msg = (
                f"optimizer: none of the {len(own)} parameters of the {which} is a watched "
                "parameter of the model"
            )
            raise ValueError(msg)
