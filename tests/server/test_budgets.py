"""Budgets: the table is whole, and what it says of itself can be set."""

from __future__ import annotations

import pytest

from gradwatch_server.budget import UNLIMITED, Budget
from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.budgets import BUDGETS, Budgets, LoggedBudgets, table

SUFFIXES = {"bytes": "_bytes", "s": "_s", "per min": "_per_min", "share": "_share"}


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: budget.name)
def test_each_budget_says_all_of_itself(budget: Budget) -> None:
    stem, _, of = budget.name.partition("_per_")
    name = budget.name if budget.unit == "per min" else stem if of else budget.name
    assert name.endswith(SUFFIXES.get(budget.unit, ""))
    assert all((budget.per, budget.what, budget.why, budget.at_limit))
    assert not budget.why.endswith(".")
    assert Budgets.model_validate({budget.name: budget.default}) == Budgets()


def test_the_table_has_a_line_for_each() -> None:
    lines = table().splitlines()

    assert len(lines) == len(BUDGETS) + 2
    shown = {line.split("`")[1]: line.split(" | ")[1] for line in lines[2:]}
    assert shown["runs"] == "1,000"
    assert shown["sessions_bytes"] == "128 MiB"
    assert shown["header_s"] == "10 s"
    assert shown["attempts_per_min"] == "60 per min"
    assert shown["publish_share"] == "0.1"


def test_budgets_survive_the_log() -> None:
    own = Budgets(runs=3).logged()

    assert set(LoggedBudgets.unlimited().model_dump().values()) == {UNLIMITED}
    assert LoggedBudgets.model_validate(own.model_dump()) == own == Budgets(runs=5).logged()
    assert {budget.name for budget in BUDGETS if budget.is_logged} == own.model_fields_set


def test_what_is_used_is_noted_under_the_names_of_the_table() -> None:
    use = BudgetUse(Budgets(runs=5))
    use["runs"].used = 3
    use["runs"].num_evicted += 1

    assert (use.limit("runs"), use["runs"].used, use["runs"].num_evicted) == (5, 3, 1)
    assert use["attempts"].used is None
    with pytest.raises(KeyError):
        use["runz"].num_refused += 1
