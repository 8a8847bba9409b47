"""The table of training loops: a few of its rows, and the page that has all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pytest

from benchmarks.loops.cell import Verdict
from benchmarks.loops.harness import Outcome, run_loops
from benchmarks.loops.registry import loops
from benchmarks.loops.table import SECTION, registered_in
from benchmarks.loops.verdict import COLUMNS, judge

pytestmark = pytest.mark.slow

QUICK: Final = (
    "gradient accumulation, shorter last windows",
    "own guard: `if not isfinite(norm): continue`",
    "LBFGS",
    "GradScaler, fused SGD, first steps skipped",
    "`torch.compile` before `attach`",
)

Change: TypeAlias = Callable[[Outcome], Any]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", QUICK)
def test_a_row_is_right(name: str) -> None:
    """Run for real; the whole table takes some minutes."""
    (outcome,) = run_loops([loops()[name]])
    row = judge(outcome)

    assert {column: cell.wrongs for column, cell in row.items() if cell.wrongs} == {}
    for column in ("step", "norm", "layer", "loss, lr", "weights"):
        assert row[column].verdict is Verdict.RIGHT, column
    assert row["graph breaks"].number == (0 if outcome.loop.is_compiled else None)


@pytest.fixture(scope="module")
def plain() -> Outcome:
    (outcome,) = run_loops([loops()["gradient clipping"]])
    return outcome


def _notes(outcome: Outcome, variant: str = "none-watched") -> list[dict[str, Any]]:
    notes: list[dict[str, Any]] = outcome.ranks[0][variant]["notes"]
    return notes


def _fault(outcome: Outcome, variant: str) -> dict[str, Any]:
    fault: dict[str, Any] = outcome.ranks[0][variant]["fault"]
    return fault


WRONG: Final[dict[str, tuple[str, Change]]] = {
    "a step too many": ("step", lambda o: _notes(o).pop()),
    "another number": ("step", lambda o: _notes(o)[4].update(step=40)),
    "not taken": ("step", lambda o: _notes(o)[4].update(taken=False)),
    "NaN at another step": ("step", lambda o: _fault(o, "nan-watched").update(step=4)),
    "explosion at another step": ("step", lambda o: _fault(o, "explosion-watched").update(step=4)),
    "norm": ("norm", lambda o: _notes(o)[4]["layers"].update({"stem.bias": 0.123})),
    "norm of a layer without gradient": ("norm", lambda o: _notes(o)[4]["layers"].pop("stem.bias")),
    "layer of the NaN": ("layer", lambda o: _fault(o, "nan-watched").update(layers=["a"])),
    "layer of the explosion": ("layer", lambda o: _fault(o, "explosion-watched").update(layers=[])),
    "rank": ("rank", lambda o: _fault(o, "nan-watched").update(rank=1)),
    "lr": ("loss, lr", lambda o: _notes(o)[4].update(lr=0.2)),
    "loss": ("loss, lr", lambda o: _notes(o, "none-watched-loss")[4].update(loss=0.2)),
    "weights": ("weights", lambda o: o.ranks[0]["none-watched"]["weights"].update(a="b")),
    "raised": ("weights", lambda o: o.ranks[0]["nan-watched"].update(error="ValueError()")),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", WRONG)
def test_what_is_not_as_gradwatch_says_is_wrong(plain: Outcome, what: str) -> None:
    column, change = WRONG[what]
    outcome = copy.deepcopy(plain)
    change(outcome)
    row = judge(outcome)

    assert judge(plain)[column].verdict in {Verdict.RIGHT, Verdict.NO_MEANING}
    assert [name for name, cell in row.items() if cell.verdict is Verdict.WRONG] == [column]


def test_the_page_has_a_row_for_each_loop_and_none_is_wrong() -> None:
    """`scripts/bench loops --write` writes it."""
    rows = registered_in(SECTION.read())
    words = {word for row in rows for cell in row[1:] for word in cell.split(" ")[:1]}

    assert [row[0] for row in rows] == list(loops())
    assert {len(row) for row in rows} == {1 + len(COLUMNS)}
    assert {word for word in words if not word.isdigit()} <= {"right", "null", "-"}
