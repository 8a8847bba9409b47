"""What rules need to know of an attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from gradwatch_server.core.alerting.evaluation import ALL_LAYERS, Context
from gradwatch_server.core.alerting.memory import Memories
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.frames.window import Window
from tests.support import limit_rule


@pytest.fixture
def limit_alone() -> Iterator[None]:
    """`exploding` goes by its limit alone, and nothing asks what was usual."""
    with limit_rule.limit_alone():
        yield


@pytest.fixture(scope="session")
def context_of() -> Callable[..., Context]:
    """Make the context of an attempt with these layers, or some: `context_of("a", "b")`."""

    def make(*names: str) -> Context:
        names = names or tuple("abcdefgh")
        groups = {ALL_LAYERS: np.ones(len(names), dtype=np.bool_)}
        memories = Memories()
        memories.follow(Rules().root.items())
        return Context("gpt", 1, names, groups, Window(), memories=memories)

    return make
