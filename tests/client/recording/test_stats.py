"""From gradients to a STATS record: which number goes where."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradwatch._faults import Faults
from gradwatch._pending.stats import SeenSteps
from gradwatch._recording.readback import Readback
from gradwatch._recording.reports import pending_stats
from gradwatch._recording.step_history import NO_HISTORY, StepHistory, TakenHistory
from gradwatch._recording.step_sample import StepSample
from gradwatch._statistics.devices import pack
from gradwatch_wire import Column, Manifest, Stats


def stats_of(
    gradients: list[torch.Tensor],
    scalars: dict[str, list[torch.Tensor]],
    *,
    is_scaled: bool = False,
    columns: tuple[str, ...] = ("l2", "nans", "infs"),
    history: TakenHistory = NO_HISTORY,
) -> Stats:
    """The record of one sample of these numbers."""
    sample = StepSample(
        step=5,
        manifest_id=3,
        layers=tuple(range(len(gradients))),
        part=1,
        parts=2,
        scalars={"lr": 0.5},
        device_scalars=scalars,
    )
    sample.measure(gradients, lambda _: columns)
    if is_scaled:
        sample.mark_scaled()
    pending = pending_stats(sample, Readback(Faults()), SeenSteps(), history)
    assert pending.ready()
    (record,) = pending.records()
    assert isinstance(record, Stats)
    return record


def test_losses_of_steps_before_that_are_on_a_device_come_with_the_numbers() -> None:
    """As on an accelerator: the losses are tensors until the record is made."""
    clock = iter(range(10))
    history = StepHistory(lambda: float(next(clock)))
    given: list[float | torch.Tensor | None] = [0.5, torch.tensor(2.5).double(), None]
    for step, loss in enumerate([*given, torch.tensor(3.5).double(), 4.5]):
        history._loss.given = [] if loss is None else [(loss, None)]
        history.end_step(step, [], was_measured=False, is_skipped=False)
    scalars = {"loss": [torch.tensor(0.25)], "loss_scale": [torch.tensor(8.0)]}
    record = stats_of([torch.ones(3)], scalars, history=history.take(4))

    columns = {name: column.unpack() for name, column in record.history.items()}
    assert list(columns["step"]) == [0, 1, 2, 3]
    assert list(columns["has_loss"]) == [1, 1, 0, 1]
    assert [columns["loss"][at] for at in (0, 1, 3)] == [0.5, 2.5, 3.5]
    assert record.scalars == {"lr": 0.5, "loss": 0.25, "loss_scale": 8.0}
    assert history.take(9).rows == ()


def test_norms_and_scalars_find_their_places() -> None:
    gradients = [torch.full((n,), 2.0) for n in (1, 4, 9)]
    scalars = {"loss": [torch.tensor(0.25)], "loss_scale": [torch.tensor(8.0)]}
    record = stats_of(gradients, scalars)

    assert record == Stats(
        manifest_id=3,
        step=5,
        labels={"path": "rows"},
        scalars={"lr": 0.5, "loss": 0.25, "loss_scale": 8.0},
        columns={"l2": Column.pack("<f8", [2.0, 4.0, 6.0])},
        part=1,
        parts=2,
    )


def test_the_loss_scale_is_divided_out_of_the_norms_only() -> None:
    scalars = {"loss": [torch.tensor(3.0)], "loss_scale": [torch.tensor(4.0)]}
    columns = ("l2", "l1", "linf", "zeros")
    record = stats_of([torch.tensor([8.0, 0.0])], scalars, is_scaled=True, columns=columns)

    assert [record.columns[name].unpack() for name in columns] == [[2.0], [2.0], [2.0], [1]]
    assert record.scalars == {"lr": 0.5, "loss": 3.0, "loss_scale": 4.0}


@pytest.mark.parametrize("scale", [3.0, 1e-40, 0.0, math.inf, math.nan])
def test_the_division_is_that_of_the_device_in_float64(scale: float) -> None:
    """Bit for bit, also by scales that are no power of two, subnormal or no number."""
    norms = [1.0, 7.3, 0.0, 1e-300, 1e300, math.inf, math.nan]
    gradients = [torch.tensor([norm], dtype=torch.float64) for norm in norms]
    divisor = torch.tensor(scale)
    record = stats_of(gradients, {"loss_scale": [divisor]}, is_scaled=True)

    expected = (torch.tensor(norms, dtype=torch.float64) / divisor).tolist()
    assert list(map(str, record.columns["l2"].unpack())) == list(map(str, expected))


def test_nan_and_inf_are_counted_where_there_are_some() -> None:
    """The columns are left out while there are none."""
    record = stats_of([torch.tensor([1.0, math.nan, math.inf, -math.inf]), torch.ones(2)], {})

    assert record.columns["nans"] == Column.pack("<u8", [1, 0])
    assert record.columns["infs"] == Column.pack("<u8", [2, 0])
    assert set(stats_of([torch.ones(2)], {}).columns) == {"l2"}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_bad_sum_of_several_shows(value: float) -> None:
    """The probe's sums are added up on the device."""
    sums = [torch.tensor(1.0), torch.tensor(value), torch.tensor(-2.0, dtype=torch.float64)]

    assert not math.isfinite(
        stats_of([torch.ones(1)], {"local_probe": sums}).scalars["local_probe"]
    )
    assert stats_of([torch.ones(1)], {"local_probe": sums[::2]}).scalars["local_probe"] == -1.0


def test_a_new_manifest_comes_before_its_statistics() -> None:
    numel = Column.pack("<u8", [1])
    manifest = Manifest(manifest_id=3, names=("a",), numel=numel, dtypes=("float32",))
    sample = StepSample(step=0, manifest_id=3, layers=(0,))
    sample.measure([torch.ones(1)], lambda _: ("l2",))
    pending = pending_stats(sample, Readback(Faults()), SeenSteps())
    pending.manifests = [manifest]

    first, second = pending.records()
    assert first == manifest
    assert isinstance(second, Stats)


def test_gradients_of_several_devices_are_measured_where_they_are() -> None:
    """Each device's numbers are packed there; which layers they are of is kept (row A12)."""
    elsewhere = torch.device("meta")
    made = [torch.ones(2), torch.ones(3, device=elsewhere), torch.ones(4)]
    sample = StepSample(step=0, manifest_id=1, layers=(0, 1, 2))
    sample.measure(made, lambda _: ("l2", "zeros"))

    assert sample.places == {torch.device("cpu"): [0, 2], elsewhere: [1]}
    assert {device: columns["l2"].shape for device, columns in sample.columns.items()} == {
        torch.device("cpu"): (2,), elsewhere: (1,)
    }  # fmt: skip
    assert sample.columns[elsewhere]["zeros"].device == elsewhere


def test_what_is_packed_is_a_copy_in_float64() -> None:
    single = torch.tensor([0.1, 0.2], dtype=torch.float64)
    values = Readback(Faults()).start([single, torch.tensor(1.5)])
    single.zero_()

    assert values.ready()
    assert values.read() == [[0.1, 0.2], [1.5]]
    assert pack([torch.tensor(1.5), torch.tensor([2.5], dtype=torch.float16)]).tolist() == [
        1.5,
        2.5,
    ]


class Operators(TorchDispatchMode):
    """Notes what is enqueued; views of what is there are nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function._schema.name not in {"aten::view", "aten::detach"}:
            self.names.append(function._schema.name.removeprefix("aten::"))
        return function(*args, **(kwargs or {}))


def test_numbers_on_the_cpu_are_read_where_they_lie() -> None:
    sums = [torch.tensor(float(n), dtype=torch.float64) for n in range(16)]
    scalars = {"local_probe": sums, "loss_scale": [torch.tensor(2.0)]}
    sample = StepSample(step=0, layers=(0,), device_scalars=scalars)
    sample.measure([torch.ones(4)], lambda _: ("l2", "l1", "linf"))
    with Operators() as operators:
        sample.mark_scaled()
        pending = pending_stats(sample, Readback(Faults()), SeenSteps())
        (record,) = pending.records()

    assert operators.names == ["_to_copy"]  # of the scale, which is float32
    assert isinstance(record, Stats)
    assert record.scalars["local_probe"] == 120.0
