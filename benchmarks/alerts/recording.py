"""Trains with one or several ranks in one process, and writes down what a client would measure.

Ranks: each draws its own data and has its own gradients, which are averaged, as DDP does. As long
as all replicas are bit for bit the same they are one object; a fault that makes one differ splits
them.
The statistics are those of the client, read where the client reads them: after the reduction,
before clipping, the loss scale divided out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.alerts.measuring import checked, measured
from benchmarks.alerts.recorded import FloatArray, Rows
from benchmarks.alerts.training import Training
from gradwatch._faults import Faults
from gradwatch._hooks.order import ForwardOrder
from gradwatch._layers.layers import find_layers
from gradwatch._statistics.updates import size_of_update, take_sample
from gradwatch._watch.attach import UPDATES_EVERY
from gradwatch_wire.columns import COUNT_COLUMNS, L2, LINF, MEASURED_COLUMNS, UPDATE_COLUMNS

Gradients: TypeAlias = dict[str, Tensor]
WEIGHTS_EVERY: Final = 100
CHECK_EVERY: Final = 200
"""Steps between two that are measured by the client, too, and compared."""

STEP_S: Final = 0.01
"""Usual time of a step."""

_EVALUATED_EVERY: Final = 100
_EVALUATION_S: Final = 0.5
_ORDER_STEPS: Final = 12
_L2: Final = MEASURED_COLUMNS.index(L2)
_LINF: Final = MEASURED_COLUMNS.index(LINF)
_MAGNITUDES: Final = [i for i, name in enumerate(MEASURED_COLUMNS) if name not in COUNT_COLUMNS]


def step_seconds(seed: int, step: int) -> float:
    """Return the time of a step: scattered, and with evaluations in every third run.

    It is made up, so that a recording does not depend on the machine.
    """
    scatter = 0.05 + 0.1 * (seed % 4)
    is_evaluated = seed % 3 == 0 and step % _EVALUATED_EVERY == _EVALUATED_EVERY - 1
    drawn = np.random.default_rng([seed, step]).normal(0.0, scatter)
    return STEP_S * math.exp(float(drawn)) + (_EVALUATION_S if is_evaluated else 0.0)


class Job:
    """A training on all its ranks.

    Args:
        training: The training, as every rank has it.

    Attributes:
        replicas: Of each rank; the same object as long as nothing makes them differ.
        pause_s: Time that the next step takes besides.
        is_zeroed: Whether gradients are emptied before each step.
        data_rank: Rank whose data all have, None if each has its own.
    """

    def __init__(self, training: Training) -> None:
        self.replicas = [training] * training.world
        self.pause_s = 0.0
        self.is_zeroed = True
        self.data_rank: int | None = None

    @property
    def training(self) -> Training:
        return self.replicas[0]

    @property
    def distinct(self) -> list[Training]:
        """The replicas that differ."""
        return list({id(each): each for each in self.replicas}.values())

    def split(self) -> None:
        """Let each rank have a replica of its own."""
        if len(self.distinct) < len(self.replicas):
            self.replicas = [self.training, *(self.training.fork() for _ in self.replicas[1:])]

    def fork(self) -> Job:
        """Return a copy; only possible while all replicas are one."""
        assert len(self.distinct) == 1
        return Job(self.training.fork())


class Meddler:
    """Where a fault can meddle; this one does not. See `faults.fault`."""

    def before(self, job: Job, step: int) -> None:
        """Change weights, data or the rate before the forward pass."""

    def loss(self, job: Job, step: int, rank: int, loss: Tensor) -> Tensor:
        """Change the loss of a micro-batch."""
        del job, step, rank
        return loss

    def local(self, job: Job, step: int, rank: int, gradients: Gradients) -> None:
        """Change a rank's gradients before they are averaged."""

    def reduced(self, job: Job, step: int, rank: int, gradients: Gradients) -> Gradients:
        """Return what a rank has after the reduction; not changed in place."""
        del job, step, rank
        return gradients


@dataclass(frozen=True, slots=True)
class LayerOrder:
    """The layers of a run.

    Args:
        names: In forward order if it was found, else in that of registration.
        is_ordered: Whether it was.
    """

    names: tuple[str, ...]
    is_ordered: bool


def find_order(training: Training) -> LayerOrder:
    """Let the client find the order of the layers on a copy of the training."""
    copied = training.fork()
    copied.model.requires_grad_(True)  # what is frozen may be thawed
    layers = find_layers(copied.model, None, None)
    order = ForwardOrder([copied.model], layers, Faults())
    everything = tuple(range(len(layers)))
    arranged, known = everything, False
    for step in range(_ORDER_STEPS):
        order.read(copied.micro_loss(step, 0, 0)[0])
        arranged, known = order.arrange(everything)
        order.end_step()
        if known:
            break
    order.close()
    return LayerOrder(tuple(layers[index].name for index in arranged), known)


class Recorder:
    """Runs steps of a job and keeps their numbers.

    Args:
        job: The job; its first step is the one that `step` is called with first.
        layers: Names of the layers in the order of the columns.
        seconds: When it begins, since the run began.
        attempt: Number of the attempt it begins in.
    """

    def __init__(
        self, job: Job, layers: tuple[str, ...], seconds: float = 0.0, attempt: int = 0
    ) -> None:
        self.job = job
        self.layers = layers
        self.seconds = seconds
        self.attempt = attempt
        self._earlier = np.empty((0, len(layers)))
        self._steps: list[dict[str, Any]] = []
        self._own: list[FloatArray] = []
        self._own_at: list[tuple[int, int]] = []
        self._weights: list[FloatArray] = []
        self._weights_at: list[int] = []
        self._updates: list[FloatArray] = []
        self._updates_at: list[int] = []
        self._carried: Gradients = {}
        self._looked_at: int | None = None

    def step(self, step: int, meddler: Meddler) -> None:
        job = self.job
        if job.training.is_resumed_at(step) and step:
            for each in job.distinct:
                each.resume()
            self.attempt += 1
            self._looked_at = None
        meddler.before(job, step)
        for each in job.distinct:
            each.set_rate(step)
        scale = job.training.scaler
        row: dict[str, Any] = {
            "lr": job.training.rate,
            "loss_scale": math.nan if scale is None else float(scale.get_scale()),
            "attempt": self.attempt,
            "carried": not job.is_zeroed and self._carry(),
        }
        found = [self._local(step, rank, meddler) for rank in range(len(job.replicas))]
        row["loss"] = [loss for loss, _, _ in found]
        row["batch_size"] = [size for _, size, _ in found]
        locals_ = [gradients for _, _, gradients in found]
        row["earlier_l2"] = self._earlier
        row["local_l2"] = self._local_norms(locals_, row["loss_scale"])
        self._reduce(step, row, locals_, meddler)
        for each in job.distinct:
            each.after_step(step)
        if len(job.replicas) > 1 and step % WEIGHTS_EVERY == WEIGHTS_EVERY - 1:
            self._weights.append(np.stack([self._digest(each) for each in job.replicas]))
            self._weights_at.append(len(self._steps))
        self.seconds += step_seconds(job.training.recipe.seed, step) + job.pause_s
        job.pause_s = 0.0
        row["seconds"] = self.seconds
        self._steps.append(row)

    def _local(self, step: int, rank: int, meddler: Meddler) -> tuple[float, int, Gradients]:
        """Run the backward passes of a rank; return its loss, its samples and its gradients."""
        training = self.job.replicas[rank]
        for name, each in training.named_parameters():
            kept = self._carried.get(name)
            each.grad = None if kept is None else kept.clone()
        total, samples = 0.0, 0
        own = rank if self.job.data_rank is None else self.job.data_rank
        earlier: list[FloatArray] = []
        for micro in range(training.accumulate):
            loss, size = training.micro_loss(step, own, micro)
            loss = meddler.loss(self.job, step, rank, loss)
            total, samples = total + loss.item(), samples + size
            loss = loss / training.accumulate
            if training.scaler is not None:
                loss = training.scaler.scale(loss)
            loss.backward()
            gradients = {
                name: each.grad
                for name, each in training.named_parameters()
                if each.grad is not None
            }
            if micro < training.accumulate - 1:
                earlier.append(self._norms(gradients))
        # With several ranks these are local, and nobody sees them: `accumulate` is for one.
        scale = 1.0 if training.scaler is None else float(training.scaler.get_scale())
        self._earlier = np.array(earlier).reshape(-1, len(self.layers)) / scale
        meddler.local(self.job, step, rank, gradients)
        return total / training.accumulate, samples, gradients

    def _carry(self) -> bool:
        """Keep the gradients that the step before has used; return whether there are any."""
        named = self.job.training.named_parameters()
        self._carried = {name: each.grad for name, each in named if each.grad is not None}
        return bool(self._carried)

    def _local_norms(self, gradients: list[Gradients], scale: float) -> FloatArray:
        if len(gradients) == 1:
            return np.empty((0, len(self.layers)))
        norms = np.full((len(gradients), len(self.layers)), math.nan)
        for rank, gradient in enumerate(gradients):
            norms[rank] = self._norms(gradient)
        return norms if math.isnan(scale) else norms / scale

    def _norms(self, gradients: Gradients) -> FloatArray:
        norms = np.full(len(self.layers), math.nan)
        given = [gradients[name] for name in self.layers if name in gradients]
        if given:
            norms[[name in gradients for name in self.layers]] = measured(given)[_L2]
        return norms

    def _reduce(
        self, step: int, row: dict[str, Any], own: list[Gradients], meddler: Meddler
    ) -> None:
        mean = own[0] if len(own) == 1 else _mean(own)
        measured: dict[int, FloatArray] = {}
        updates: dict[int, FloatArray] = {}
        first: FloatArray | None = None
        for rank, training in enumerate(self.job.replicas):
            mine = meddler.reduced(self.job, step, rank, mean)
            if id(mine) not in measured:
                measured[id(mine)] = self._measure(mine, row["loss_scale"])
            values = measured[id(mine)]
            if first is None:
                first = row["columns"] = values
                row["present"] = [name in mine for name in self.layers]
                known = dict(training.named_parameters())
                row["trainable"] = [known[name].requires_grad for name in self.layers]
            elif not np.array_equal(values, first, equal_nan=True):
                self._own.append(values)
                self._own_at.append((len(self._steps), rank))
            if all(training is not each for each in self.job.replicas[:rank]):
                # Clipping writes to them: where there are several replicas each needs its own.
                is_only = training is self.job.replicas[-1]
                mine = mine if is_only else _copied(mine)
                taken, updates[id(training)] = self._update(step, training, mine)
                if rank == 0:
                    row["taken"] = taken
        if taken and self._is_look(step):
            self._looked_at = step // UPDATES_EVERY
            self._updates.append(np.stack([updates[id(each)] for each in self.job.replicas]))
            self._updates_at.append(len(self._steps))

    def _is_look(self, step: int) -> bool:
        return self._looked_at != step // UPDATES_EVERY

    def _update(
        self, step: int, training: Training, gradients: Gradients
    ) -> tuple[bool, FloatArray]:
        """Let the optimizers step; return whether they did, and (3, layers) of their update."""
        updates = np.full((len(UPDATE_COLUMNS), len(self.layers)), math.nan)
        if not self._is_look(step):
            return _update(training, gradients), updates
        known = dict(training.named_parameters())
        places = [place for place, name in enumerate(self.layers) if name in gradients]
        weights = [known[self.layers[place]] for place in places]
        before = take_sample(weights, torch.device("cpu"))
        taken = _update(training, gradients)
        found = size_of_update(before)
        if found:
            updates[:, places] = torch.stack([found[name] for name in UPDATE_COLUMNS]).numpy()
        return taken, updates

    def _measure(self, gradients: Mapping[str, Tensor], scale: float) -> FloatArray:
        columns = np.full((len(MEASURED_COLUMNS), len(self.layers)), math.nan)
        places = [place for place, name in enumerate(self.layers) if name in gradients]
        if places:
            given = [gradients[self.layers[place]] for place in places]
            is_due = len(self._steps) % CHECK_EVERY == 0
            columns[:, places] = checked(given) if is_due else measured(given)
        if not math.isnan(scale):
            columns[_MAGNITUDES] /= scale
        return columns

    def _digest(self, training: Training) -> FloatArray:
        known = dict(training.named_parameters())
        weights = [known[name].detach() for name in self.layers]
        return np.vstack([measured(weights)[[_L2, _LINF]], [_bits(each) for each in weights]])

    @property
    def last_columns(self) -> FloatArray:
        """(6, layers) of the last step."""
        columns: FloatArray = self._steps[-1]["columns"]
        return columns

    def rows(self) -> Rows:
        """Return the numbers of all steps so far."""
        layers, world = len(self.layers), len(self.job.replicas)
        steps = self._steps

        def stacked(name: str, dtype: Any = np.float64) -> Any:
            return np.array([row[name] for row in steps], dtype=dtype)

        return Rows(
            columns=np.array([row["columns"] for row in steps]),
            own=np.array(self._own).reshape(-1, len(MEASURED_COLUMNS), layers),
            own_at=np.array(self._own_at, dtype=np.int64).reshape(-1, 2),
            present=stacked("present", np.bool_),
            trainable=stacked("trainable", np.bool_),
            loss=stacked("loss"),
            batch_size=stacked("batch_size"),
            lr=stacked("lr"),
            loss_scale=stacked("loss_scale"),
            taken=stacked("taken", np.bool_),
            local_l2=stacked("local_l2"),
            earlier_l2=stacked("earlier_l2"),
            seconds=stacked("seconds"),
            attempt=stacked("attempt", np.int64),
            weights=np.array(self._weights).reshape(-1, world, 3, layers),
            weights_at=np.array(self._weights_at, dtype=np.int64),
            updates=np.array(self._updates).reshape(-1, world, len(UPDATE_COLUMNS), layers),
            updates_at=np.array(self._updates_at, dtype=np.int64),
            carried=stacked("carried", np.bool_),
        )


def _bits(weight: Tensor) -> float:
    """Return the sum of the elements' bits, which is exact in any order."""
    whole = weight.contiguous().view(torch.int16 if weight.itemsize == 2 else torch.int32)
    return float(int(whole.long().sum()) % 2**53)


def _mean(own: list[Gradients]) -> Gradients:
    """Average over the ranks; one without a gradient has zeros there, as in DDP."""
    mean: Gradients = {}
    for name in {name: None for each in own for name in each}:
        given = [each[name] for each in own if name in each]
        mean[name] = torch.stack(given).sum(0).div_(len(own)) if given else given[0]
    return mean


def _copied(gradients: Gradients) -> Gradients:
    return {name: each.clone() for name, each in gradients.items()}


def _update(training: Training, gradients: Gradients) -> bool:
    """Let the optimizers step; return whether they did."""
    parameters: list[nn.Parameter] = []
    for name, each in training.named_parameters():
        each.grad = gradients.get(name)
        parameters.append(each)
    scaler = training.scaler
    if scaler is None:
        if training.clip is not None:
            nn.utils.clip_grad_norm_(parameters, training.clip)
        for optimizer in training.optimizers:
            optimizer.step()
        return True
    before = scaler.get_scale()
    for optimizer in training.optimizers:
        scaler.unscale_(optimizer)
    if training.clip is not None:
        nn.utils.clip_grad_norm_(parameters, training.clip)
    for optimizer in training.optimizers:
        scaler.step(optimizer)
    scaler.update()
    return float(scaler.get_scale()) >= float(before)
