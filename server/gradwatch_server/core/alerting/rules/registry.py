"""Registry of all rules. A new one is one line of the list at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradwatch_server.core.alerting.rules import (
    dead_layer,
    exploding,
    gain,
    groups,
    layer_missing,
    liveness,
    loss,
    loss_scaler,
    nonfinite,
    rank_divergence,
    rank_outlier,
    records_lost,
    silent_bugs,
    slow,
    vanishing,
    weights_unchanged,
)
from gradwatch_server.core.alerting.rules.base import Rule


class UnknownRuleError(LookupError):
    """A name is that of no rule."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(f"no rule {name!a}; the rules are {', '.join(self.known)}")


class Registry:
    """The rules by name, in the order of evaluation."""

    def __init__(self, *rules: type[Rule]) -> None:
        self._rules: dict[str, type[Rule]] = {}
        for rule in rules:
            self.add(rule)

    def __iter__(self) -> Iterator[type[Rule]]:
        """Go over the rules in the order of evaluation."""
        return iter(self._rules.values())

    def __getitem__(self, name: str) -> type[Rule]:
        """Return a rule.

        Raises:
            UnknownRuleError: If there is none of that name.
        """
        if name not in self._rules:
            raise UnknownRuleError(name, self._rules)
        return self._rules[name]

    def add(self, rule: type[Rule]) -> None:
        """Register a rule after all others.

        Raises:
            ValueError: If its name is taken, or one of its settings has no description.
            UnknownRuleError: If it yields to a rule that is not there.
        """
        if rule.name in self._rules:
            msg = f"there is a rule {rule.name!r} already: {self._rules[rule.name].__name__}"
            raise ValueError(msg)
        for other in rule.yields_to:
            self[other]
        for key, setting in rule.model_fields.items():
            if not setting.description:
                msg = f"setting {key!r} of rule {rule.name!r} has no description"
                raise ValueError(msg)
        self._rules[rule.name] = rule

    def remove(self, name: str) -> None:
        """Take a rule out again.

        Raises:
            UnknownRuleError: If there is none of that name.
        """
        del self._rules[self[name].name]


# The order is that of evaluation, and with it of the events of one step; the worst come first.
REGISTRY = Registry(
    nonfinite.NonfiniteRule,
    exploding.ExplodingRule,
    dead_layer.DeadLayerRule,
    vanishing.VanishingRule,
    layer_missing.LayerMissingRule,
    loss.LossRule,
    slow.SlowRule,
    groups.GroupsRule,
    gain.GainRule,
    loss_scaler.LossScalerRule,
    rank_divergence.RankDivergenceRule,
    rank_outlier.RankOutlierRule,
    silent_bugs.NotLearningRule,
    weights_unchanged.WeightsUnchangedRule,
    silent_bugs.NotZeroedRule,
    silent_bugs.RepeatedGradientRule,
    silent_bugs.SameBatchRule,
    records_lost.RecordsLostRule,
    liveness.LivenessRule,
)
