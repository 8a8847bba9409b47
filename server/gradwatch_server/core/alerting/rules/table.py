"""The `[rules]` table of `gradwatch.toml`: all rules and their copies, with their settings."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    create_model,
    field_validator,
    model_serializer,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from gradwatch_server.core.alerting.rules.base import HealthShare, Rule
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.registry import REGISTRY, UnknownRuleError

COPY: Final = "copy"
"""The key of the rule that another one is a copy of."""

MAX_COPIES: Final = 64
"""Copies of rules: each is evaluated at each step."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


class Rules(RootModel[dict[str, SerializeAsAny[Rule]]]):
    """All rules by name; one that is not set has its defaults, and a copy follows its rule."""

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

    @classmethod
    def from_log(cls, plain: Mapping[str, Any]) -> Rules:
        """Return rules as an earlier version may have written them into the log.

        A rule or a key that is gone is left out; a rule whose settings are no longer allowed has
        its defaults.
        """
        try:
            return cls.model_validate(plain)
        except ValidationError:
            return cls.model_validate(dict(_still_valid(cls, plain)))

    def taking(self, kind: type) -> Sequence[tuple[str, Rule]]:
        """Return the rules, with their names, that are evaluated by observations of a type."""
        return self.by_kind.get(kind, ())

    def flagging(self, kind: type) -> Sequence[tuple[str, Rule]]:
        """Return those of `taking` whose flags somebody asks for: they are on, or health counts."""
        return self.flagging_by_kind.get(kind, ())

    def watching(self, run: str) -> Rules:
        """Return those that watch runs of this name."""
        own = {name: rule for name, rule in self.root.items() if rule.watches(run)}
        return self if len(own) == len(self.root) else Rules.model_construct(own)

    def differing(self, other: Rules) -> list[str]:
        """Return the names of the rules that only one of the two has, or has set like this."""
        names = (*other.root, *(name for name in self.root if name not in other.root))
        return [name for name in names if self.root.get(name) != other.root.get(name)]

    @cached_property
    def by_kind(self) -> Mapping[type, Sequence[tuple[str, Rule]]]:
        """Type of observation to the rules that take it, in the order of evaluation."""
        found: dict[type, list[tuple[str, Rule]]] = defaultdict(list)
        for name, rule in self.root.items():
            for kind in rule.takes:
                found[kind].append((name, rule))
        return dict(found)

    @cached_property
    def flagging_by_kind(self) -> Mapping[type, Sequence[tuple[str, Rule]]]:
        """Type of observation to the rules that `flagging` returns."""
        return {
            kind: tuple(own for own in taking if own[1].enabled or own[1].health is not None)
            for kind, taking in self.by_kind.items()
        }

    @cached_property
    def counted(self) -> Sequence[LayerRule]:
        """Those whose layers `/health` counts."""
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

    @field_validator("root", mode="before")
    @classmethod
    def _with_defaults(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given  # what comes next says that it must be a table
        copied = {name: own[COPY] for name, own in given.items() if _is_copy(own)}
        if errors := list(_wrong_names(given, copied)):
            raise ValidationError.from_exception_data("Rules", errors)
        rules = tuple(_in_order(copied))
        tables = {name: _without_copy(own) for name, own in given.items()}
        if errors := list(_wrong_keys(tables, rules)):
            raise ValidationError.from_exception_data("Rules", errors)
        return dict(_settings_model(rules).model_validate(tables))

    @model_serializer(mode="wrap")
    def _with_copied(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Say of each copy what it is one of."""
        plain: dict[str, Any] = handler(self)
        return {
            name: own if (of := self.root[name].copied) is None else {COPY: of, **own}
            for name, own in plain.items()
        }


def _still_valid(
    rules: type[Rules], plain: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    known = {rule.name: rule for rule in REGISTRY}
    for name, table in plain.items():
        rule = known.get(table.get(COPY, name))
        if rule is None:
            continue
        own = {key: table[key] for key in table if key == COPY or key in rule.model_fields}
        try:
            rules.model_validate({name: own})
        except ValidationError:
            continue
        yield name, own


def _is_copy(table: Any) -> bool:
    return isinstance(table, Mapping) and COPY in table


def _without_copy(table: Any) -> Any:
    return {k: v for k, v in table.items() if k != COPY} if _is_copy(table) else table


def _in_order(copied: Mapping[str, str]) -> Iterator[type[Rule]]:
    """Yield the registered rules, and after each its copies by name."""
    for rule in REGISTRY:
        yield rule
        for name in sorted(name for name, of in copied.items() if of == rule.name):
            yield _copy(rule, name)


@lru_cache(maxsize=1_024)
def _copy(rule: type[Rule], name: str) -> type[Rule]:
    """Return the class of a copy: it is the rule under another name."""
    made = create_model(
        rule.__name__, __base__=rule, __doc__=rule.__doc__, __module__=rule.__module__
    )
    made.name, made.copied = name, rule.name
    return made


@lru_cache
def _settings_model(rules: tuple[type[Rule], ...]) -> type[BaseModel]:
    """Return a model with a field per rule: errors then name rule and key."""
    fields: dict[str, Any] = {rule.name: (rule, rule()) for rule in rules}
    return create_model("Rules", __config__=ConfigDict(frozen=True), **fields)


def _wrong_names(given: Mapping[str, Any], copied: Mapping[str, Any]) -> Iterator[InitErrorDetails]:
    known = [rule.name for rule in REGISTRY]
    listed = ", ".join(known)
    for name, table in given.items():
        if name not in copied:
            if name not in known:
                yield _error("unknown_rule", (name,), table, f"the rules are {listed}")
        elif name in known:
            says = f"{name} is a rule itself; give the copy a name of its own"
            yield _error("copy_name", (name, COPY), copied[name], says)
        elif not _NAME.fullmatch(name):
            says = "the name of a copy is up to 64 of a-z, 0-9 and _, and begins with a letter"
            yield _error("copy_name", (name,), name, says)
        elif copied[name] not in known:
            says = f"Input should be the name of a rule: {listed}"
            yield _error("copy_of", (name, COPY), copied[name], says)
    if len(copied) > MAX_COPIES:
        says = f"there should be at most {MAX_COPIES} copies"
        yield _error("too_many_copies", (), len(copied), says)


def _wrong_keys(
    tables: Mapping[str, Any], rules: Sequence[type[Rule]]
) -> Iterator[InitErrorDetails]:
    for rule in rules:
        table = tables.get(rule.name)
        if not isinstance(table, Mapping):
            continue
        for key in table:
            if key not in rule.model_fields:
                keys = ", ".join(rule.model_fields)
                says = f"the keys of {rule.copied or rule.name} are {keys}"
                yield _error("unknown_key", (rule.name, key), table[key], says)


def _error(kind: Any, where: tuple[str, ...], given: Any, says: str) -> InitErrorDetails:
    text = says.replace("{", "{{").replace("}", "}}")
    return InitErrorDetails(type=PydanticCustomError(kind, text), loc=where, input=given)
