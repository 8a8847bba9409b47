"""What the tests of hooks share."""

from __future__ import annotations

import sys

import pytest
import torch


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
