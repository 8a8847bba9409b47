"""A rule that is defined here, and nowhere else: each part of the service knows it."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from gradwatch_server.core.alerting.active import ActiveAlerts
from gradwatch_server.core.alerting.evaluation import Context, Evaluation, RuleVerdict
from gradwatch_server.core.alerting.flags import Flags
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import (
    FOR_STEPS,
    HealthShare,
    Limit,
    Rule,
    Share,
    Steps,
)
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.registry import REGISTRY
from gradwatch_server.core.arrays import BoolArray, FloatArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.state_codec import decode, encode
from gradwatch_server.errors import GradwatchError
from gradwatch_server.settings import load_settings
from gradwatch_wire.columns import ZEROS
from tests.support.core import Cluster
from tests.support.whole_state import UNREPEATED

PAGE = runpy.run_path(str(Path(__file__).parents[5] / "scripts" / "ruletables.py"))


class ManyZerosRule(LayerRule):
    """More than `limit` zeros in a layer's gradient.

    Rectified units that are off have a gradient of zero.
    """

    name = "many_zeros"
    formula = "a layer has `zeros > limit`."
    tuning = """
        Raise `limit`
        for wide layers.
    """
    source = "nowhere"

    limit: Limit = Field(5.0, description="Number of zeros above which a layer is too sparse.")
    for_steps: Steps = Field(2, description=FOR_STEPS)

    def raised(self, observation: Frame, context: Context) -> BoolArray:
        raised: BoolArray = observation.column(ZEROS) > self.limit
        return raised

    @classmethod
    def values(cls, frame: Frame) -> FloatArray:
        zeros: FloatArray = frame.column(ZEROS)
        return zeros

    def threshold(self) -> float:
        return self.limit


class CountedZerosRule(ManyZerosRule):
    """The same, as something that health counts."""

    name = "counted_zeros"
    health = HealthShare.EXPLODING


@dataclass(frozen=True)
class Temperature:
    """An observation of a kind that nothing else knows."""

    step: int
    celsius: float


class HotRule(Rule):
    """A device hotter than `limit`."""

    name = "hot"
    takes = (Temperature,)

    limit: Limit = Field(90.0, description="Temperature above which it is too hot, in Celsius.")
    share: Share = Field(0.1, description="Share of it below which it must fall to be over.")
    clear_steps: Steps = Field(1, description="Measurements that must be good.")

    def raised(self, observation: Temperature, context: Context) -> BoolArray:
        return self._verdict(observation).raised

    def evaluate(
        self, observation: Temperature, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        step, celsius = observation.step, observation.celsius
        yield Evaluation(
            group="devices",
            step=step,
            received_ns=0,
            verdict=self._verdict(observation),
            names=(),
            origin=lambda _: Origin(step, None, (), None, None, celsius, self.limit),
            severity=lambda _: self.severity,
        )

    def describe(self, origin: Origin) -> str:
        return f"a device is at {origin.value:g} degrees"

    def _verdict(self, observation: Temperature) -> RuleVerdict:
        celsius = observation.celsius
        calm = self.limit * (1.0 - self.share)
        return RuleVerdict.of_run(raised=celsius > self.limit, held=celsius > calm)


@pytest.fixture(params=[ManyZerosRule])
def rule(request: pytest.FixtureRequest) -> Iterator[type[Rule]]:
    """A rule that is registered as long as a test runs."""
    REGISTRY.add(request.param)
    yield request.param
    REGISTRY.remove(request.param.name)


def configured(text: str, folder: Path) -> dict[str, Any]:
    """Return the rules of a file, as the engine writes them into the log."""
    (folder / "gradwatch.toml").write_text(text)
    rules: dict[str, Any] = load_settings(folder / "gradwatch.toml").rules.model_dump(mode="json")
    return rules


def saved_and_restored(attempt: Any) -> None:
    attempt.closed.active_alerts = decode(encode(attempt.active_alerts), ActiveAlerts)
    attempt.closed.last_flags = decode(encode(attempt.closed.last_flags), Flags)


def test_it_is_configured_evaluated_fired_saved_restored_and_resolved(
    rule: type[Rule], tmp_path: Path
) -> None:
    """Registered, it needs not another line."""
    job = Cluster(world=2, names=("a", "b")).start()
    rules = configured("[rules.many_zeros]\nlimit = 7\nclear_steps = 2\n", tmp_path)
    job.rules(**rules | UNREPEATED)
    zeros = [[0, 7], [0, 8], [0, 9], [0, 0], [0, 0]]
    for step, zero in enumerate(zeros):
        job.step(step, zeros=zero)
        saved_and_restored(job.attempt)

    assert [(a.rule, a.state, a.fired_step, a.resolved_step) for a in job.alerts] == [
        (rule.name, "firing", 2, None),
        (rule.name, "resolved", 2, 4),
    ]
    fired = job.alerts[0]
    assert (fired.group, fired.layers, fired.first_step, fired.severity) == (
        *("all", ("b",), 1),
        "warning",
    )
    assert fired.message == "many_zeros since step 1 on ranks 0, 1: 8 (limit 7)"
    assert (fired.origin.value, fired.origin.threshold, fired.origin.ranks) == (8.0, 7.0, (0, 1))
    assert rule.name in job.attempt.closed.last_flags.masks


def test_a_bad_value_of_it_is_refused_by_name(rule: type[Rule], tmp_path: Path) -> None:
    with pytest.raises(GradwatchError, match=r"'rules\.many_zeros\.limit': Input should be great"):
        configured("[rules.many_zeros]\nlimit = 0\n", tmp_path)
    with pytest.raises(GradwatchError, match=r"'rules\.zeros' is not known; .*, many_zeros$"):
        configured("[rules.zeros]\n", tmp_path)


def test_it_is_documented_by_its_definition(rule: type[Rule]) -> None:
    page = PAGE["fill"](f"above\n{PAGE['BEGIN']}left over\n{PAGE['END']}below\n")

    assert PAGE["section"](rule) in page
    assert "left over" not in page
    assert PAGE["section"](rule) == (
        "## many_zeros\n\n"
        "More than `limit` zeros in a layer's gradient. "
        "`for_steps` is `2`, `severity` is `warning`.\n\n"
        "**Raised when:** a layer has `zeros > limit`.\n\n"
        "* `limit` (default `5.0`): Number of zeros above which a layer is too sparse.\n\n"
        "Rectified units that are off have a gradient of zero.\n\n"
        "**To tune it:** Raise `limit`\nfor wide layers.\n\n"
        "**From:** nowhere\n"
    )


def test_health_leaves_it_out_unless_it_says_otherwise(rule: type[Rule]) -> None:
    job = Cluster(names=("a", "b")).start()
    job.step(0, zeros=[9, 0])

    assert rule.name not in job.health()["layers"]
    assert (job.health()["has_exploding"], job.health()["score"]["last"]) == (False, 1.0)


@pytest.mark.parametrize("rule", [CountedZerosRule], indirect=True)
@pytest.mark.parametrize("enabled", [True, False])
def test_health_counts_what_it_says_it_counts_towards(rule: type[Rule], enabled: bool) -> None:
    job = Cluster(names=("a", "b", "c", "d")).start()
    job.rules(**{rule.name: {"enabled": enabled}})
    job.step(0, [1.0, 1.0, 1.0, 500.0], zeros=[8, 9, 0, 9])
    report = job.health()

    assert report["layers"][rule.name] == 3
    assert report["score"]["last"] == pytest.approx(1.0 - 0.8 * 3 / 4)
    assert [(layer["name"], layer["why"]) for layer in report["worst_layers"]] == [
        ("d", "exploding"),
        *(("b", rule.name), ("d", rule.name), ("a", rule.name)),
    ]
    assert (rule.name in {a.rule for a in job.attempt.active_alerts.alerts()}) == enabled


@pytest.mark.parametrize("rule", [HotRule], indirect=True)
def test_it_may_take_observations_of_a_new_kind(rule: type[Rule]) -> None:
    job = Cluster().start()
    told = []
    for step, celsius in enumerate([80.0, 91.0, 85.0, 80.0]):
        told += job.attempt.closed.evaluate(Temperature(step, celsius), job.state.rules)

    assert [(a.group, str(a.state), a.resolved_step) for a in told] == [
        ("devices", "firing", None),
        ("devices", "resolved", 3),
    ]
    assert told[0].message.startswith("hot since step 1 on ")
