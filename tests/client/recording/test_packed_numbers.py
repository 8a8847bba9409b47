"""Numbers that the kernel writes where they are sent from, and the others beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from gradwatch._pending.ring import ABSENT
from gradwatch._recording import packed_numbers, step_sample
from gradwatch._recording.packed_numbers import PackedNumbers
from gradwatch._statistics.statistics import cuda_statistics
from gradwatch_wire import Stats
from gradwatch_wire.columns import MEASURED_COLUMNS
from tests.support.late_memory import LateMemory, take_as_far
from tests.support.recording import Sink

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:numpy|triton")

CPU = torch.device("cpu")


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LateMemory]]:
    """The CPU stands for a GPU, and the kernel runs in the interpreter."""
    pytest.importorskip("triton")
    made = take_as_far(monkeypatch)
    monkeypatch.setattr(step_sample, "statistics", cuda_statistics)
    yield made
    for memory in made:
        memory.deliver()


class Model(nn.Module):
    """Two layers, one of which has a sparse gradient if that is asked for."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4, sparse=sparse)
        self.head = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))

    def forward(self, batch: Tensor) -> Tensor:
        found: Tensor = self.head(self.table(batch)).square().mean()
        return found


def sent_by(
    aggregator: Any, attach: Any, memories: list[LateMemory] | None, case: dict[str, Any]
) -> list[Stats]:
    torch.manual_seed(3)
    settings = dict(case)
    use_scaler, sparse = settings.pop("scaler", False), settings.pop("sparse", False)
    model = Model(sparse=sparse)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=8.0, enabled=use_scaler)
    before = len(aggregator.of(Stats))
    watch = attach(
        *(model, optimizer),
        run=f"run-{before}",
        scaler=scaler if use_scaler else None,
        columns=settings.pop("columns", MEASURED_COLUMNS),
        **settings,
    )
    for step in range(6):
        optimizer.zero_grad()
        for part in range(2):
            loss = model(torch.tensor([1, step % 5])) * (math.inf if step == 3 else 1.0)
            scaler.scale(loss).backward()
            if part or step % 2:
                watch.collect(loss=loss, batch_size=2 + part, micro_batch=not part)
        if use_scaler:
            scaler.step(optimizer)
            scaler.update()
        elif step != 3:
            optimizer.step()
        for memory in memories or []:
            memory.deliver()
    watch.close()
    assert watch.stats()["faults"] == 0, watch.stats()["last_error"]
    count = before + 6 // settings.get("report_every", 1)
    found: list[Stats] = aggregator.stats(count)[before:]
    return found


CASES: list[dict[str, Any]] = [
    {},
    {"columns": ("l2",)},
    {"columns": ("l2", "zeros"), "sparse": True},
    {"report_every": 2},
    {"scaler": True},
    {"scaler": True, "report_every": 3, "local": True, "activations": True},
    {"local": True, "activations": True, "sparse": True},
]


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_records_are_those_that_are_packed_anew(
    aggregator: Sink, far: list[LateMemory], monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]
) -> None:
    """Number by number, whatever else is in a record."""
    kept: list[bool] = []
    holds = PackedNumbers.holds

    def watched(packed: PackedNumbers, values: Any) -> bool:
        kept.append(holds(packed, values))
        return kept[-1]

    monkeypatch.setattr(PackedNumbers, "holds", watched)
    found = sent_by(aggregator, aggregator.attach, far, case)
    assert kept
    assert all(kept)
    monkeypatch.setattr(PackedNumbers, "holds", lambda *_: False)
    expected = sent_by(aggregator, aggregator.attach, far, case)

    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one.labels == other.labels
        assert numbers_of(one) == pytest.approx(numbers_of(other), rel=1e-12, nan_ok=True)


def numbers_of(stats: Stats) -> dict[str, Any]:
    found = {name: value for name, value in stats.scalars.items() if name != "step_time_s"}
    for name, column in stats.columns.items():
        found |= {f"{name} {place}": each for place, each in enumerate(column.unpack())}
    if stats.activations is not None:
        found |= {f"output {i}": each for i, each in enumerate(stats.activations.unpack())}
    return found


def test_a_gradient_that_the_kernel_leaves_has_its_number_too(
    aggregator: Sink, far: list[LateMemory]
) -> None:
    model = nn.ModuleList([nn.Linear(3, 1, bias=False), nn.Linear(2, 1, bias=False)])
    watch = aggregator.attach(model)
    model[0].weight.grad = torch.ones(1, 6)[:, ::2]
    model[1].weight.grad = torch.full((1, 2), 2.0)
    watch.collect(loss=torch.tensor(0.5))
    far[0].deliver()
    (stats,) = aggregator.stats(1)

    assert stats.columns["l2"].unpack() == pytest.approx([math.sqrt(3.0), math.sqrt(8.0)])
    assert stats.scalars["loss"] == 0.5


def test_no_number_that_is_put_beside_looks_absent() -> None:
    odd = torch.tensor([ABSENT, ABSENT - (1 << 63)]).view(torch.float64)
    packed = PackedNumbers(2, CPU)
    packed.rows.fill_(1.0)
    kept = packed.keep(odd[0])
    assert kept is not None
    part = packed.put_together([kept, packed.rows[0], odd, torch.tensor([math.nan]), odd[1]])
    assert part is not None
    bits = part.numbers.view(torch.int64).tolist()

    assert ABSENT not in bits
    assert ABSENT - (1 << 63) not in bits
    assert [part.numbers[begin].isnan().item() for begin in part.begins] == [1, 0, 1, 1, 1]


def test_what_is_sent_has_nothing_in_it_that_nobody_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is taken as it is: it could look absent for ever."""
    monkeypatch.setattr(
        torch, "empty", lambda size, **_: torch.tensor([ABSENT] * size).view(torch.float64)
    )
    packed = PackedNumbers(3, CPU)
    packed.rows.fill_(2.0)
    loss = packed.keep(torch.tensor(7.0))
    assert loss is not None
    values = [packed.rows[2], torch.tensor([1, 2, 3]), loss, torch.ones(4, dtype=torch.bfloat16)]
    part = packed.put_together(values)
    assert part is not None

    assert ABSENT not in part.numbers.view(torch.int64).tolist()
    sizes = [value.numel() for value in values]
    found = [
        part.numbers[begin : begin + size].tolist()
        for begin, size in zip(part.begins, sizes, strict=True)
    ]
    assert found == [[2.0] * 3, [1.0, 2.0, 3.0], [7.0], [1.0] * 4]


def test_without_room_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_numbers, "MIN_OTHERS", 0)
    packed = PackedNumbers(1, CPU)
    packed.rows.fill_(2.0)
    assert packed.put_together([packed.rows[0], torch.ones(3)]) is None
    assert packed.keep(torch.tensor(1.0)) is not None
    assert packed.keep(torch.tensor(1.0)) is not None
    assert packed.keep(torch.tensor(1.0)) is None
