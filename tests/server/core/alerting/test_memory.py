"""Memory of a rule about an attempt: it outlives a restart, and the rules it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import Field

from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.memory import Memories
from gradwatch_server.core.alerting.rules.base import Limit
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.registry import REGISTRY
from gradwatch_server.core.arrays import BoolArray, FloatArray
from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.run import _rules
from gradwatch_server.core.state_codec import decode, encode
from tests.support.core import Cluster


@dataclass
class Highest:
    """The highest norm of each layer so far."""

    norms: FloatArray = field(default_factory=lambda: np.zeros(0))

    def learn(self, norms: FloatArray) -> FloatArray:
        """Return the highest before *norms*, (layers,)."""
        before = np.pad(self.norms, (0, len(norms) - len(self.norms)))
        self.norms = np.fmax(before, norms)
        return before


class RecordRule(LayerRule):
    """A norm above the highest so far."""

    name = "record"
    memory: ClassVar[type | None] = Highest

    factor: Limit = Field(1.0, description="Times the highest so far that a norm must be above.")

    def raised(self, observation: Frame, context: Context) -> BoolArray:
        highest = context.memory(self.name, Highest).learn(observation.l2_max)
        raised: BoolArray = observation.l2_max > self.factor * highest
        return raised


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    REGISTRY.add(RecordRule)
    yield
    REGISTRY.remove(RecordRule.name)


def restart(job: Any) -> None:
    again = decode(encode(job.attempt), Attempt)
    run = job.state.runs[job.run]
    run.attempts.pop()
    run.adopt(again)
    job.state.sessions.update((session.id, session) for session in again.sessions.values())


def saved(attempt: Attempt) -> dict[str, bytes]:
    return attempt.closed.memories.to_state().saved


def is_raised(job: Any, step: int, norm: float) -> bool:
    job.step(step, [norm])
    return bool(job.attempt.closed.last_flags.masks["record"][0])


@pytest.mark.parametrize("restarts", [False, True])
def test_a_rule_knows_what_it_saw_before_by_other_settings_too(restarts: bool) -> None:
    job = Cluster(names=("a",)).start()
    assert is_raised(job, 0, 5.0)
    for _ in range(2 * restarts):
        restart(job)
    assert not is_raised(job, 1, 4.0)
    job.rules(record={"factor": 2.0})
    if restarts:
        restart(job)

    assert not is_raised(job, 2, 9.0)  # not twice 5
    assert is_raised(job, 3, 19.0)


def test_a_memory_that_cannot_be_read_begins_anew() -> None:
    memories = Memories({"record": b"none"})
    memories.update([("record", Highest)])

    assert memories["record"].norms.tolist() == []


def test_each_attempt_has_its_own() -> None:
    """A new launch begins with nothing; the attempt before has let its memory go."""
    job = Cluster(names=("a",)).start()
    assert is_raised(job, 0, 5.0)
    before = job.attempt
    job.bye(0)
    job.start(job="again")

    assert is_raised(job, 0, 1.0)
    assert saved(before) == {}


def test_what_no_rule_has_any_more_is_forgotten() -> None:
    """The rule that comes back under the name begins anew."""
    job = Cluster(names=("a",)).start()
    assert is_raised(job, 0, 5.0)
    assert "record" in saved(job.attempt)
    REGISTRY.remove(RecordRule.name)
    job.rules()
    job.step(1, [1.0])
    assert "record" not in saved(job.attempt)
    REGISTRY.add(RecordRule)
    _rules.cache_clear()  # these were read when there was none of this name
    job.rules()

    assert is_raised(job, 2, 1.0)
