"""What rules need to know of an attempt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import Field

from gradwatch_server.core.alerting.attribution import explosion_ranks
from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.rules.base import FOR_STEPS, SEVERITY, HealthShare, Limit, Steps
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.module import ranks_with
from gradwatch_server.core.alerting.rules.registry import REGISTRY
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.health import Severity


class LimitRule(LayerRule):
    """A layer's gradient L2 norm above `limit`, whatever it was before."""

    name = "exploding"
    health = HealthShare.EXPLODING

    limit: Limit = Field(100.0, description="L2 norm above which it is raised.")
    clear: Limit = Field(50.0, description="L2 norm at or below which it is calm again.")
    for_steps: Steps = Field(2, description=FOR_STEPS)
    severity: Severity = Field(Severity.CRITICAL, description=SEVERITY)

    def seen(self, frame: Frame) -> BoolArray:
        return frame.present & ~frame.nonfinite

    def threshold(self) -> float:
        return self.limit

    def raised(self, observation: Frame, context: Context) -> BoolArray:
        return (observation.l2_max > self.limit) & ~observation.nonfinite

    def held(self, frame: Frame, raised: BoolArray) -> BoolArray:
        return self.seen(frame) & (frame.l2_max > self.clear)

    def find_ranks(self, frame: Frame, index: int) -> tuple[int, ...]:
        return explosion_ranks(frame, index, self.limit) or ranks_with(
            frame, index, lambda part: part.peak > self.limit
        )


@pytest.fixture
def limit_alone() -> Iterator[None]:
    """`exploding` goes by its limit alone, and nothing asks what was usual."""
    whole = list(REGISTRY)
    for rule in whole:
        if rule.name == "exploding":
            REGISTRY.remove(rule.name)
    REGISTRY.add(LimitRule)
    yield
    for rule in list(REGISTRY):
        REGISTRY.remove(rule.name)
    for rule in whole:
        REGISTRY.add(rule)
