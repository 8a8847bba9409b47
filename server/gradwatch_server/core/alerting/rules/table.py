"""The `[rules]` table of `gradwatch.toml`: all rules with their settings."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    create_model,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from gradwatch_server.core.alerting.rules.base import HealthShare, Rule
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.registry import REGISTRY, UnknownRuleError
from gradwatch_server.core.judge.detector import (
    FALSE_ALERTS_PER_100K,
    MAX_FALSE_ALERTS,
    MIN_FALSE_ALERTS,
)

BUDGET: Final = "false_alerts_per_100k_steps"


class _FlaggingRules(dict[tuple[type, int], Sequence[tuple[str, Rule]]]):
    """Rules that are on, or that health counts, found once for each type and set of signs."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def __missing__(self, key: tuple[type, int]) -> Sequence[tuple[str, Rule]]:
        kind, signs = key
        pairs = self[key] = tuple(
            (name, rule)
            for name, rule in self._rules.taking(kind)
            if (rule.enabled or rule.health is not None) and rule.signs & signs
        )
        return pairs


class Rules(BaseModel):
    """All rules by name; a rule that is not set has its defaults.

    Attributes:
        false_alerts_per_100k_steps: Alerts of healthy training that the detector may raise in
            100,000 frames; the margins of `exploding`, `vanishing`, `loss` and `slow` follow from
            this budget.
    """

    model_config = ConfigDict(frozen=True)

    false_alerts_per_100k_steps: float = Field(
        FALSE_ALERTS_PER_100K, ge=MIN_FALSE_ALERTS, le=MAX_FALSE_ALERTS, allow_inf_nan=False
    )
    root: dict[str, SerializeAsAny[Rule]] = Field(default_factory=dict)

    def __getitem__(self, name: str) -> Rule:
        """Return a rule.

        Raises:
            UnknownRuleError: If there is none of that name.
        """
        if name not in self.root:
            raise UnknownRuleError(name, self.root)
        return self.root[name]

    def taking(self, kind: type) -> Sequence[tuple[str, Rule]]:
        """Return the rules, with their names, that are evaluated by observations of a type."""
        return self.by_kind.get(kind, ())

    @cached_property
    def flagging(self) -> Mapping[tuple[type, int], Sequence[tuple[str, Rule]]]:
        """Type of an observation and its signs to those of `taking` whose flags are asked for."""
        return _FlaggingRules(self)

    @cached_property
    def json_text(self) -> str:
        """All settings as JSON: once, for the logs of all runs that begin."""
        return json.dumps(self.model_dump(mode="json"))

    @cached_property
    def floor(self) -> float:
        """The largest `floor` of a rule."""
        return max((rule.floor for rule in self.root.values()), default=0.0)

    def watching(self, run: str) -> Rules:
        rules = {name: rule for name, rule in self.root.items() if rule.watches(run)}
        if len(rules) == len(self.root):
            return self
        # A copy would keep what is worked out from all rules.
        budget = self.false_alerts_per_100k_steps
        return Rules.model_construct(false_alerts_per_100k_steps=budget, root=rules)

    def memories(self) -> Iterator[tuple[str, type | None]]:
        """Yield the name of each rule, and the class of its memory."""
        return ((name, rule.memory) for name, rule in self.root.items())

    def differing(self, other: Rules) -> list[str]:
        """Return the names of the rules that only one of the two has, or has set like this."""
        names = (*other.root, *(name for name in self.root if name not in other.root))
        differing = [name for name in names if self.root.get(name) != other.root.get(name)]
        is_same = self.false_alerts_per_100k_steps == other.false_alerts_per_100k_steps
        return differing if is_same else [BUDGET, *differing]

    @cached_property
    def by_kind(self) -> Mapping[type, Sequence[tuple[str, Rule]]]:
        """Type of observation to the rules that take it, in the order of evaluation."""
        rules: dict[type, list[tuple[str, Rule]]] = defaultdict(list)
        for name, rule in self.root.items():
            for kind in rule.takes:
                rules[kind].append((name, rule))
        return dict(rules)

    @cached_property
    def counted(self) -> Sequence[LayerRule]:
        """Rules whose layers `/health` counts."""
        return tuple(
            rule
            for rule in self.root.values()
            if isinstance(rule, LayerRule) and rule.health is not None
        )

    @cached_property
    def counted_towards(self) -> Mapping[HealthShare, Sequence[str]]:
        """Share of the health score to the names of those that count towards it."""
        return {
            share: tuple(rule.name for rule in self.counted if rule.health is share)
            for share in HealthShare
        }

    @model_validator(mode="before")
    @classmethod
    def _of_table(cls, given: Any) -> Any:
        """Take the table of the configuration, in which the budget is beside the rules."""
        if not isinstance(given, Mapping):
            return given  # what comes next says that it must be a table
        rules = {name: table for name, table in given.items() if name != BUDGET}
        if errors := list(_unknown(rules)):
            raise ValidationError.from_exception_data("Rules", errors)
        root = dict(_settings_model(tuple(REGISTRY)).model_validate(rules))
        return {"root": root} | ({BUDGET: given[BUDGET]} if BUDGET in given else {})

    @model_serializer(mode="wrap")
    def _as_table(self, to_plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain = to_plain(self)
        return {BUDGET: plain[BUDGET], **plain["root"]}


@lru_cache
def _settings_model(rules: tuple[type[Rule], ...]) -> type[BaseModel]:
    """Return a model with a field per rule: errors then name rule and key."""
    fields: dict[str, Any] = {rule.name: (rule, rule()) for rule in rules}
    return create_model("Rules", __config__=ConfigDict(frozen=True), **fields)


def _unknown(given: Mapping[str, Any]) -> Iterator[InitErrorDetails]:
    known = {rule.name: rule for rule in REGISTRY}
    for name, table in given.items():
        rule = known.get(name)
        if rule is None:
            text = f"the rules are {', '.join(known)}"
            yield _error("unknown_rule", (name,), table, text)
            continue
        for key in table if isinstance(table, Mapping) else ():
            if key not in rule.model_fields:
                text = f"the keys of {name} are {', '.join(rule.model_fields)}"
                yield _error("unknown_key", (name, key), table[key], text)


def _error(kind: Any, where: tuple[str, ...], given: Any, message: str) -> InitErrorDetails:
    text = message.replace("{", "{{").replace("}", "}}")
    return InitErrorDetails(type=PydanticCustomError(kind, text), loc=where, input=given)
