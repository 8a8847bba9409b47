"""Every file of a command is part of `gradwatch`, under its own name; who runs one has a name."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest

from gradwatch_server.cli import commands
from gradwatch_server.cli.user import user_name

FILES = sorted(module.name for module in pkgutil.iter_modules(commands.__path__))


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_listed_and_has_tests(name: str) -> None:
    module = importlib.import_module(f"{commands.__name__}.{name}")

    assert hasattr(module, name)
    assert name in commands.COMMANDS
    assert (Path(__file__).parent / "commands" / f"test_{name}.py").exists()


def test_a_user_without_a_name_is_called_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)

    assert user_name() == f"user {2**31 - 7}"
