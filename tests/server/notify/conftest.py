"""Receivers of notifications."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.aggregator import Aggregator
from tests.support.receiver import Receive, Receiver

AT_ONCE: Final = "group_wait_s = 0\ngroup_interval_s = 0\n"

RULES: Final = 'rules = ["nonfinite"]\n'
"""On a busy machine a peer of a test may be silent for longer than a rule likes."""


@pytest.fixture
def receive() -> Iterator[Receive]:
    """Start a receiver: `receive(port=0, is_slow=False)`."""
    made: list[Receiver] = []

    def begin(port: int = 0, *, is_slow: bool = False) -> Receiver:
        made.append(Receiver(port, is_slow=is_slow))
        return made[-1]

    yield begin
    for own in made:
        own.close()


@pytest.fixture
def notify(tmp_path: Path, serve: Callable[..., Aggregator]) -> Callable[..., Aggregator]:
    """Start an aggregator with targets: `notify(oncall=receiver.url)`, or with a table's text.

    They are told at once, and alerts are over after one good step.
    """

    def begin(**targets: str) -> Aggregator:
        write_config(tmp_path, **targets)
        return serve("--config", str(tmp_path / "gradwatch.toml"))

    return begin


def write_config(folder: Path, **targets: str) -> None:
    """Write the settings of such an aggregator."""
    text = "[rules.nonfinite]\nclear_steps = 1\n"
    for name, target in targets.items():
        table = target if "\n" in target else f'url = "{target}"\n{RULES}{AT_ONCE}'
        text += f"[notify.{name}]\n{table}"
    (folder / "gradwatch.toml").write_text(text)
