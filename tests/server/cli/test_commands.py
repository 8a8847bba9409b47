"""Every file of a command is part of `gradwatch`, under its own name."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from gradwatch_server.cli import commands

FILES = sorted(module.name for module in pkgutil.iter_modules(commands.__path__))


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_listed(name: str) -> None:
    """Its function is called like the file."""
    module = importlib.import_module(f"{commands.__name__}.{name}")

    assert getattr(module, name) in commands.COMMANDS
