"""A copy of a data directory, made while it is in use, and served elsewhere."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gradwatch_server.cli.app import app
from gradwatch_server.storage.sqlite.store import DATABASE_NAME
from gradwatch_wire import Bye
from tests.support.aggregator import Aggregator, Serve

pytestmark = pytest.mark.slow

NORMS = (*[1.0] * 40, float("nan"), *[1.0] * 9)
PATHS = ("", "/health", "/alerts", "/ranks", "/layers", "/series?column=norm", "/frames/40")
CHANGING = ("boot", "now", "revision", "last_seen_s", "cursor")
"""What is another one for each aggregator, or at each moment."""


def steady(answer: Any) -> Any:
    """Return an answer without what is another one for each aggregator."""
    if isinstance(answer, dict):
        return {key: steady(own) for key, own in answer.items() if key not in CHANGING}
    return [steady(own) for own in answer] if isinstance(answer, list) else answer


def test_a_copy_is_served_and_judged_again_elsewhere(serve: Serve, tmp_path: Path) -> None:
    """As `sqlite3 gradwatch.db ".backup copy.db"` makes it: the database alone."""
    first = serve()
    peer = first.peer(run="gpt").attach(("a", "b"))
    peer.steps(0, *NORMS)
    peer.send(Bye(reason="done"))
    peer.acked()
    first.health_of_ended("gpt")
    copy = tmp_path / "copy" / DATABASE_NAME
    copy.parent.mkdir()
    with (
        contextlib.closing(sqlite3.connect(first.directory / DATABASE_NAME)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
    second = Aggregator(copy.parent)
    try:
        second.start()
        for path in PATHS:
            here, there = (own.json(f"/runs/gpt{path}") for own in (first, second))
            assert steady(there) == steady(here), path
        assert steady(second.json("/alerts?after=0")) == steady(first.json("/alerts?after=0"))
        assert second.json("/readyz") == {"status": "ready"}
        new = second.peer(run="new").attach()
        new.steps(0, 1.0)
        second.shows(new)
    finally:
        second.close()

    rules = tmp_path / "rules.toml"
    rules.write_text("[rules.nonfinite]\nseverity = 'warning'\n")
    arguments = ["rules", "check", str(rules), "--run", "gpt", "--data", str(copy.parent)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "steps 40 to 40 resolved warning nonfinite" in result.stdout
