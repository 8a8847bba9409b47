"""Every file of routes is part of the app."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from gradwatch_server.api import routes

FILES = sorted(module.name for module in pkgutil.iter_modules(routes.__path__))


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_listed(name: str) -> None:
    """One that is forgotten would answer 404."""
    module = importlib.import_module(f"{routes.__name__}.{name}")

    assert module.router in routes.ROUTERS
    assert module.router.routes
