"""`attach`: checks the arguments, finds out where it is, puts the parts of a watch together."""

from __future__ import annotations

import gc
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from gradwatch._faults import Faults, tell
from gradwatch._hooks.activations import Activations
from gradwatch._hooks.blocks import BlockGains, find_blocks
from gradwatch._hooks.local import LocalNorms
from gradwatch._hooks.optimizer_steps import unwrapped
from gradwatch._hooks.order import ForwardOrder
from gradwatch._hooks.probe import LocalProbe
from gradwatch._hooks.training_hooks import TrainingHooks
from gradwatch._hooks.weights import WeightDigests
from gradwatch._layers.groups import Group, find_groups
from gradwatch._layers.layers import Layer, find_layers
from gradwatch._layers.modules import Modules, find_modules
from gradwatch._layers.names import Patterns
from gradwatch._layers.parallel import Parallel, find_meshes, has_marks
from gradwatch._layers.pieces import find_pieces
from gradwatch._layers.tracker import LayerTracker
from gradwatch._layers.wrappers import find_reduction, is_autograd_compiled
from gradwatch._pending.events import PendingManifest
from gradwatch._recording.config import WatchConfig
from gradwatch._recording.loss_scale import is_scaler
from gradwatch._recording.observer import Observer
from gradwatch._recording.overhead import Overhead
from gradwatch._recording.readback import Readback
from gradwatch._recording.recorder import Recorder
from gradwatch._recording.sampler import GradientSampler
from gradwatch._recording.schedule import Schedule
from gradwatch._recording.updates import WeightUpdates
from gradwatch._transport.keys import find_key
from gradwatch._transport.kubeflow import find_kubeflow
from gradwatch._transport.room import check_room
from gradwatch._transport.sender import Sender
from gradwatch._transport.spill import MIN_SPILL_BYTES, SPILL_BYTES, Spill, find_directory
from gradwatch._watch.arguments import (
    LAST_STEP,
    check_count,
    check_devices,
    check_flag,
    check_membership,
    check_on_alert,
    checked_columns,
    checked_expected,
    checked_optimizers,
    find_overhead,
    find_untrained,
)
from gradwatch._watch.identity import Identity, find_identity, is_disabled
from gradwatch._watch.null import NullWatch
from gradwatch._watch.watch import Watch
from gradwatch_wire import Json
from gradwatch_wire.limits import SESSION_BYTES
from gradwatch_wire.names import Dimension, Reduction
from gradwatch_wire.session.endpoint import find_endpoints
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session

if TYPE_CHECKING:  # a build of torch may lack them
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

BUFFER_BYTES: Final = 32 << 20
MIN_BUFFER_BYTES: Final = 1 << 16

OVERHEAD: Final = 0.01
"""Share that is lost in the noise of most trainings, as `scripts/bench overhead` shows."""

UPDATES_EVERY: Final = 8
"""A sample of the weights, before and after a step, takes about as long as to collect once more."""

WEIGHTS_EVERY: Final = 100
"""A digest reads the weights twice, about as much work as two collections: a fiftieth of what
collecting each step costs. Measured by `scripts/bench step`."""


def attach(
    model: nn.Module | Mapping[str, nn.Module],
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    run: str | None = None,
    endpoint: str | Sequence[str] | None = None,
    keys: str | os.PathLike[str] | None = None,
    every: int | None = None,
    overhead: float | None = OVERHEAD,
    first_step: int = 0,
    total_steps: int | None = None,
    groups: Mapping[str, Group] | None = None,
    include: Patterns = None,
    exclude: Patterns = None,
    scaler: GradScaler | None = None,
    blocks: Sequence[nn.Module] | nn.ModuleList | nn.Sequential | None = None,
    activations: Modules = False,
    parallel: Mapping[str, ProcessGroup | DeviceMesh | Sequence[int]] | None = None,
    columns: Sequence[str] | None = None,
    report_every: int = 1,
    local: bool = False,
    weights_every: int | None = None,
    updates_every: int = UPDATES_EVERY,
    expected: Sequence[str] = (),
    stacks: bool = True,
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
        optimizer: Its optimizer or optimizers, also as Accelerate or Lightning wrap them. What is
            measured is measured at the end of each backward pass; a record is made when the
            optimizer steps, or when it is seen that the step was skipped. None: only `collect`
            collects.
        run: Name of the run, the same on all ranks. Default: `GRADWATCH_RUN`, else the launcher's
            job id, else, in a single process, a generated one.
        endpoint: Where the aggregator listens. Several, where two networks lead to it, are a list
            or have commas between them: rank r begins with number r modulo their number, and goes
            on with the next one when one does not answer. Default: `GRADWATCH_ENDPOINT`, else
            `tcp://127.0.0.1:5555`.
        keys: The key file, made by `gradwatch keys`, for an aggregator that asks who sends.
            Default: `GRADWATCH_KEYS`, else none.
        every: Optimizer steps between collections. Default: what `overhead` allows.
        overhead: Share of the training's time that measuring may take: steps are measured in full
            as often as that allows. None: each one is, as always on CUDA. With `every` or
            `report_every` it has no effect. `GRADWATCH_OVERHEAD`, `none` or a number, goes first.
        first_step: Number of the first step, such as that at which a resumed run goes on.
        total_steps: Steps of the whole training, for the progress of a Kubeflow job, which rank 0
            posts. 0: the status of the job is left alone.
        groups: Names of parameter groups to patterns (`fnmatch` style, on the layer's name) or
            parameters.
        include: Patterns of the layers to watch. Default: all.
        exclude: Patterns of the layers not to watch.
        scaler: The `GradScaler` in use, so that the gradients are reported unscaled, and steps
            that it skips are told. One that is not given is found when it steps for the first
            time, with an optimizer; what was skipped before is labelled as unknown.
        blocks: Consecutive modules, input side first, whose output-gradient gains to watch; see
            `GradientGainMonitor`.
        activations: Modules whose outputs to measure, by which a NaN or an Inf that is born in the
            forward pass is placed: patterns of their names, or modules. `True`: the blocks, which
            are the items of the model's outermost lists of modules, and the modules beside them.
        parallel: Groups of this rank by parallel dimension: `tensor`, `pipeline`, `expert`,
            `expert_tensor`, `context` and `data` to a process group, a mesh of one dimension, or
            its global ranks. How a parameter lies on them is said by its marks, as Megatron and
            DeepSpeed set them. Default: groups that Megatron made, and meshes called `tp`, `pp`,
            `ep`, `cp` and `dp`.
        columns: Statistics to collect, of `l2`, `l1`, `linf`, `zeros`, `nans`, `infs`; `l2` always.
            Default: those that come for free, which is all of them on CUDA with Triton, else `l2`
            with NaN and Inf counted where the norm shows some.
        report_every: Collections per record. With several, the record has the last one's numbers,
            and the largest and the mean norm of each layer over all of them.
        local: Also measure each layer's gradient on this rank before DDP reduces it, so that a bad
            rank has a name. Costs a norm per parameter in the backward pass.
        weights_every: Steps between digests of the weights, by which replicas of them are compared
            exactly: a corrupted weight leaves the averaged gradients equal. 0: none. Default: 100
            where DDP or FSDP averages the ranks' gradients, or a `data` group is known, else none.
        updates_every: Steps of which one shows how far each layer's weights move: a sample of them
            is read before the optimizer's step and after it. 0: none.
        expected: Signs of a bug that looks healthy which are meant so, of `not_learning`,
            `weights_unchanged`, `not_zeroed`, `repeated_gradient` and `same_batch`: their alerts
            stay `info`.
        stacks: Whether the Python stack of the training thread is sent, once, where no step ends
            for 30 s and ten times as long as usual: functions, file names and lines of 30 frames.
        on_alert: Called with each event of an alert of this run, in the background thread.
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
    check_room()  # before anything else: what is imported late takes descriptors, too
    given = checked_optimizers(optimizer)
    optimizers = [unwrapped(each) for each in given]
    check_count("every", 1 if every is None else every, 1)
    share = find_overhead(overhead)
    check_count("first_step", first_step, 0, LAST_STEP)
    check_count("total_steps", 0 if total_steps is None else total_steps, 0)
    check_count("report_every", report_every, 1)
    check_count("buffer_bytes", buffer_bytes, MIN_BUFFER_BYTES)
    scaler_in_use, is_scaler_given = _find_scaler(scaler, given)
    check_on_alert(on_alert)
    check_flag("local", local)
    check_flag("stacks", stacks)
    if weights_every is not None:
        check_count("weights_every", weights_every, 0)
    check_count("updates_every", updates_every, 0)
    check_count("spill_bytes", spill_bytes, MIN_SPILL_BYTES)
    identity = find_identity(run)
    meshes = find_meshes(parallel, identity.rank, identity.world)
    replicas = meshes.get(Dimension.DATA, ())
    is_stage = len(meshes.get(Dimension.PIPELINE, ())) > 1
    layers = find_layers(model, include, exclude, is_stage=is_stage, may_be_empty=bool(meshes))
    parallelism = Parallel(identity.rank, identity.world, meshes, has_marks(layers))
    check_devices(layers)
    check_membership(optimizers, layers)
    modules = [model] if isinstance(model, nn.Module) else list(model.values())
    named_groups = find_groups(groups, layers)
    named_blocks = find_blocks(blocks, model, is_stage=is_stage)
    measured = find_modules(activations, model, layers, is_stage=is_stage)
    faults = Faults()
    config = WatchConfig(
        layers=layers,
        tracker=LayerTracker(model, include, exclude, layers, faults, is_stage=is_stage),
        groups=named_groups,
        optimizers=optimizers,
        scaler=scaler_in_use,
        is_scaler_given=is_scaler_given,
        modules=modules,
        first_step=first_step,
        columns=checked_columns(columns),
        report_every=report_every,
        is_autograd_compiled=is_autograd_compiled(),
        reduction=find_reduction(modules, identity.world, replicas),
        num_pieces=find_pieces(layers, len(named_groups), len(optimizers), tuple(measured)),
        module_names=tuple(measured),
        parallel=parallelism,
    )
    targets, key = _from_rank(find_endpoints(endpoint), identity.rank), find_key(keys)
    session_id, hello = os.urandom(SESSION_BYTES), identity.hello(checked_expected(expected))
    directory = find_directory(spill)
    with ExitStack() as undo:  # what raises here leaves nothing behind
        files = Spill(directory, session_id, hello, spill_bytes, faults) if directory else None
        session = Session(session_id, hello, Outbox(buffer_bytes, files))
        mode = _TrainingMode(modules)
        steps = _Steps()
        sender = Sender(
            *(session, targets, faults, on_alert, key, files, mode.is_training),
            steps.under_way if stacks else None,
            find_kubeflow(identity.rank, total_steps, faults),
        )
        hookable = not config.is_autograd_compiled
        order = ForwardOrder(modules, layers, faults)
        undo.callback(order.close)
        sampler = GradientSampler(config, order, faults)
        readback = Readback(faults)
        undo.callback(readback.close)
        if any(layer.parameter.is_cuda for layer in layers):
            with faults.noting("pinned memory"):  # it is asked for again when it is needed
                readback.prepare()
        schedule = _new_schedule(config, every, share, identity.world, sender)
        observers: list[Observer] = []
        if hookable and (local or identity.world > 1):
            observers.append(LocalNorms(layers, faults) if local else LocalProbe(layers, faults))
        if weights_every is None:
            has_replicas = config.reduction == Reduction.MEAN or len(replicas) > 1
            weights_every = WEIGHTS_EVERY if has_replicas else 0
        if weights_every:
            observers.append(WeightDigests(layers, weights_every, schedule, faults))
        if named_blocks:
            observers.append(BlockGains(named_blocks, readback, sender.put, faults))
        if measured:
            observers.append(Activations(measured, modules, layers, faults))
        for observer in observers:
            undo.callback(observer.close)
        updates = WeightUpdates(layers, updates_every, faults, parallelism)
        recorder = Recorder(
            config, schedule, sampler, observers, updates, readback, sender.put, faults
        )
        steps.recorder = weakref.ref(recorder)
        hooks = TrainingHooks(config, recorder, schedule, faults)
        undo.callback(hooks.close)
        recorder.observed.hook_again = weakref.WeakMethod(hooks.watch)
        _start(sender, layers, first_step)
        undo.pop_all()
    watch = Watch(recorder, hooks, sender, faults, identity)
    _tell_start(identity, len(layers), targets)
    # Those of a data group may share the parameters out, as under ZeRO.
    _tell_untrained([] if len(replicas) > 1 else find_untrained(optimizers, layers), faults)
    _tell_parallel(parallelism.unknown_warning(layers), faults)
    _tell_parallel(parallelism.collect_advice(), faults)
    return watch


def _new_schedule(
    config: WatchConfig, every: int | None, share: float | None, world: int, sender: Sender
) -> Schedule:
    """Return the schedule, with a budget where nothing else decides how often is measured."""
    is_decided = every is not None or config.report_every > 1
    # On a GPU the host does not wait for what is measured.
    if share is None or is_decided or any(layer.parameter.is_cuda for layer in config.layers):
        return Schedule(1 if every is None else every)
    if world == 1:
        is_plain = len(config.optimizers) == len(config.modules) == 1
        return Schedule(1, Overhead(share), can_rest=is_plain, record_s=lambda: sender.record_s)
    return Schedule(
        1,
        Overhead(share, looks_always=True),
        agreed=lambda: sender.session.every,
        record_s=lambda: sender.record_s,
    )


def _from_rank(endpoints: tuple[str, ...], rank: int) -> tuple[str, ...]:
    """Return them in the order in which a rank tries them: ranks spread over the first."""
    first = rank % len(endpoints)
    return endpoints[first:] + endpoints[:first]


def _tell_start(identity: Identity, num_layers: int, targets: Sequence[str]) -> None:
    what = f"run {identity.run}, rank {identity.rank} of {identity.world}, {num_layers} layers"
    target = ", else ".join(targets)
    if identity.is_generated:  # a name that nobody chose has to be seen, also in a notebook
        how = "pass attach(run=...) or set GRADWATCH_RUN for another name"
        tell(logging.WARNING, f"{what}, to {target}; {how}")
    else:
        tell(logging.INFO, f"{what}, to {target}")


def _tell_untrained(names: Sequence[str], faults: Faults) -> None:
    if names:
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        why = "require a gradient and are in no optimizer that was given, so they are not watched"
        what = f"optimizer: {len(names)} parameters ({some}) {why}"
        faults.tell_once("not watched", f"{what}; pass all optimizers, or name them in exclude=")


def _tell_parallel(message: str, faults: Faults) -> None:
    if message:
        faults.tell_once(message, message)


def _start(sender: Sender, layers: Sequence[Layer], first_step: int) -> None:
    if not layers:  # so that no step waits for this rank
        sender.put(PendingManifest(first_step))
    sender.start()


class _Steps:
    """Step of a recorder that is not kept alive.

    Attributes:
        recorder: The recorder; it needs the sender, and the sender asks for the step.
    """

    def __init__(self) -> None:
        self.recorder: Callable[[], Recorder | None] = lambda: None

    def under_way(self) -> int | None:
        """Return the step, None if the recorder is gone."""
        recorder = self.recorder()
        return None if recorder is None else recorder.step


class _TrainingMode:
    """Mode of modules that are not kept alive.

    A pause in evaluation mode is no hang.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = [weakref.ref(module) for module in modules]

    def is_training(self) -> bool | None:
        """Return whether any module is in training mode, None if no module is left.

        The background thread calls it: it reads flags, and changes nothing.
        """
        modes = [module.training for ref in self._modules if (module := ref()) is not None]
        return any(modes) if modes else None


def _find_scaler(given: object, optimizers: Sequence[Optimizer]) -> tuple[GradScaler | None, bool]:
    """Return the scaler, None if there is none, and whether that is certain.

    What is not certain is settled when an optimizer steps for the first time.

    Args:
        given: The argument of `attach`.
        optimizers: As given to `attach`, in their wrappers.

    Raises:
        TypeError: If it is no scaler.
    """
    if given is not None:
        return _checked_scaler(given), True
    if not optimizers:
        return None, True
    wrapped = next((each for each in _scalers_of(optimizers) if is_scaler(each)), None)
    if wrapped is not None:
        return wrapped, True
    alive = [each for each in gc.get_objects() if is_scaler(each)]
    return (alive[0] if len(alive) == 1 else None), False


def _checked_scaler(scaler: object) -> GradScaler | None:
    """Return the scaler, None for one that is switched off.

    Raises:
        TypeError: If it is no scaler.
    """
    if not isinstance(scaler, GradScaler):
        msg = f"scaler: a torch.amp.GradScaler, got {type(scaler).__name__}"
        raise TypeError(msg)
    return scaler if scaler.is_enabled() else None


def _scalers_of(optimizers: Sequence[Optimizer]) -> Iterator[object]:
    """Yield the scalers that wrappers keep beside their optimizer, as Accelerate's do."""
    for optimizer in optimizers:
        inner: object = optimizer
        while isinstance(inner, Optimizer):
            yield getattr(inner, "scaler", None)
            inner = getattr(inner, "optimizer", None)
