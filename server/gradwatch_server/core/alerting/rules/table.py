"""The `[rules]` table of `gradwatch.toml`: every registered rule with its settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    SerializeAsAny,
    ValidationError,
    create_model,
    field_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from gradwatch_server.core.alerting.rules.base import Rule
from gradwatch_server.core.alerting.rules.registry import REGISTRY, UnknownRuleError


class Rules(RootModel[dict[str, SerializeAsAny[Rule]]]):
    """All rules by name; one that is not set has its defaults."""

    model_config = ConfigDict(frozen=True)

    root: dict[str, SerializeAsAny[Rule]] = Field(default_factory=dict, validate_default=True)

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
    def by_kind(self) -> Mapping[type, Sequence[tuple[str, Rule]]]:
        """Type of observation to the rules that take it, in the order of evaluation."""
        found: dict[type, list[tuple[str, Rule]]] = defaultdict(list)
        for name, rule in self.root.items():
            for kind in rule.takes:
                found[kind].append((name, rule))
        return dict(found)

    @classmethod
    def from_log(cls, given: Mapping[str, Any]) -> Self:
        """Return rules that were logged, maybe by another version: what is unknown is left out.

        A rule whose settings do not go together any more has its defaults.
        """
        kept: dict[str, Any] = {}
        for rule in REGISTRY:
            settings = given.get(rule.name, {})
            known = {key: settings[key] for key in rule.model_fields if key in settings}
            try:
                kept[rule.name] = rule.model_validate(known)
            except ValidationError:
                kept[rule.name] = rule()
        return cls(kept)

    @field_validator("root", mode="before")
    @classmethod
    def _with_defaults(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given  # what comes next says that it must be a table
        rules = tuple(REGISTRY)
        names = [rule.name for rule in rules]
        unknown = [name for name in given if name not in names]
        if unknown:
            raise _unknown(unknown, given, names)
        return dict(_settings_model(rules).model_validate(given))


@lru_cache
def _settings_model(rules: tuple[type[Rule], ...]) -> type[BaseModel]:
    """Return a model with a field per rule: errors then name rule and key."""
    fields: dict[str, Any] = {rule.name: (rule, rule()) for rule in rules}
    return create_model("Rules", __config__=ConfigDict(frozen=True), **fields)


def _unknown(
    names: Sequence[str], given: Mapping[str, Any], known: Sequence[str]
) -> ValidationError:
    says = PydanticCustomError("unknown_rule", "the rules are {known}", {"known": ", ".join(known)})
    errors = [InitErrorDetails(type=says, loc=(name,), input=given[name]) for name in names]
    return ValidationError.from_exception_data("Rules", errors)
