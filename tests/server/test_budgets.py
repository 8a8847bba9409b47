"""Budgets: the table is whole, and all of it can be set."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from gradwatch_server.budgets import BUDGETS, UNLIMITED, Budget, Budgets, BudgetUse, LoggedBudgets

SUFFIXES = {"bytes": "_bytes", "s": "_s", "per min": "_per_min"}


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: budget.name)
def test_each_budget_says_all_of_itself(budget: Budget) -> None:
    assert budget.name.endswith(SUFFIXES.get(budget.unit, ""))
    assert all((budget.per, budget.description, budget.reason, budget.at_limit))
    assert not budget.reason.endswith(".")
    assert Budgets.model_validate({budget.name: budget.default}) == Budgets()


def test_the_table_shows_defaults_as_people_write_them() -> None:
    tables = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "tables.py"))
    lines = tables["budgets"]().splitlines()

    assert len(lines) == len(BUDGETS) + 2 == 16
    shown = {line.split("`")[1]: line.split(" | ")[1] for line in lines[2:]}
    assert shown["runs"] == "1,000"
    assert shown["run_bytes"] == "512 MiB"
    assert shown["http_wait_s"] == "15 s"
    assert shown["attempts_per_min"] == "60 per min"


def test_shares_of_a_run_are_all_of_its_budget() -> None:
    own = Budgets()
    shares = own.open_frames_bytes, own.layers_bytes, own.manifests_bytes, own.sessions_bytes

    assert sum(shares) == own.run_bytes


def test_budgets_survive_the_log() -> None:
    own = Budgets(runs=3).logged()

    assert set(LoggedBudgets.unlimited().model_dump().values()) == {UNLIMITED}
    assert LoggedBudgets.model_validate(own.model_dump()) == own == Budgets(runs=5).logged()


def test_use_is_counted_under_the_names_of_the_table() -> None:
    use = BudgetUse(Budgets(runs=5))
    use["runs"].used = 3
    use["runs"].num_evicted += 1

    assert (use.limit("runs"), use["runs"].used, use["runs"].num_evicted) == (5, 3, 1)
    assert use["total_bytes"].used is None
    with pytest.raises(KeyError):
        use["runz"].num_refused += 1
