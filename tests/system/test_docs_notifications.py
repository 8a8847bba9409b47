"""docs/notifications.md keeps up with the code: recipes, keys, metrics, times."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradwatch_server.notify import deadline, message, plan, worker
from gradwatch_server.notify.notifiers import alertmanager, base
from gradwatch_server.notify.status import TargetStatus
from gradwatch_server.settings import load_settings

PAGE = (Path(__file__).parents[2] / "docs" / "notifications.md").read_text("utf-8")

RECIPES = dict(re.findall(r"^### (.*)\n\n```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_recipe_is_a_target_whose_url_is_taken(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "gradwatch.toml").write_text(RECIPES[recipe])
    ((name, target),) = load_settings(tmp_path / "gradwatch.toml").notify.root.items()

    assert target.notifier(name).name == target.type
    assert "*Tested" in PAGE.split(f"\n### {recipe}\n")[1].split("\n##")[0]


def test_the_keys_of_a_target_are_all_explained() -> None:
    """Those of `GET /notifiers`, and no others."""
    section = PAGE.split("| key | |\n")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (`[^|]+`) \|", section, re.MULTILINE)
    keys = {key for row in rows for key in re.findall(r"`(\w+)`", row)}

    assert keys == set(TargetStatus("a", "apprise").to_dict())


def test_the_numbers_are_those_of_the_code() -> None:
    assert message.MAX_NAMED == 10
    assert f"{plan.MAX_ENTRIES:,} alerts of each target" in PAGE
    assert worker.FIRST_RETRY_S == 1.0
    assert f"{worker.MOST_RETRY_S / 60:g} minutes at the most" in PAGE
    assert f"{base.TIMEOUT_S:g} s (apprise" in PAGE
    assert f"a message {deadline.DEADLINE_S:g} s in all" in PAGE
    assert f"every {alertmanager.RESEND_S / 60:g} minutes" in PAGE
    assert f"{alertmanager.VALID_S / 60:g} minutes ahead" in PAGE
    assert f"{alertmanager.MAX_LABEL} characters" in PAGE
