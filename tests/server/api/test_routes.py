"""Every file of routes is part of the app."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradwatch_server.api import routes
from gradwatch_server.api.routes import runs

FILES = sorted(module.name for module in pkgutil.iter_modules(routes.__path__))


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_listed_and_has_tests(name: str) -> None:
    module = importlib.import_module(f"{routes.__name__}.{name}")

    assert module.router in routes.ROUTERS
    assert module.router.routes
    assert (Path(__file__).parent / "routes" / f"test_{name}.py").exists()


@pytest.mark.parametrize(("ranks", "layers"), [(8, 300), (600, 1), (1, 600)])
def test_an_answer_about_many_is_made_beside_the_loop(ranks: int, layers: int) -> None:
    """S22: what is asked of 4,000 ranks takes 50 ms, in which others get their answers."""
    view: Any = SimpleNamespace(ranks=range(ranks), names=range(layers))

    async def ask() -> bool:
        made = await runs._answer(view, threading.get_ident)
        return int(bytes(made.body)) == threading.get_ident()

    assert asyncio.run(ask()) == (ranks + layers <= runs.MANY)
