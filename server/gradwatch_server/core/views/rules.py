"""The answer to `/rules`: the rules in force, and how much of a run each watches. Plain data."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

from gradwatch_server.core.alerting.evaluation import all_groups
from gradwatch_server.core.alerting.limits import watched_layers
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.base import Rule
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.table import BUDGET
from gradwatch_server.core.views.snapshot import RunView

_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def describe_rules(rules: Rules, view: RunView | None = None) -> dict[str, Any]:
    """Return the budget of false alerts, and the rules with their settings, as evaluated.

    Args:
        view: A run; each rule then says what it watches of it.
    """
    described = [_describe(rule) for rule in rules.root.values()]
    if view is not None:
        counts = count_watched(rules, view)
        for description, rule in zip(described, rules.root.values(), strict=True):
            description["watches"] = _watches(rule, view, counts.get(rule.name, len(view.names)))
    return {BUDGET: rules.false_alerts_per_100k_steps, "rules": described}


def count_watched(rules: Rules, view: RunView) -> dict[str, int]:
    """Return how many layers of a run each rule watches, of those that are limited to some."""
    groups = all_groups(view.groups, len(view.names))
    watched = watched_layers(rules.watching(view.name), view.names, groups)
    return {name: int(np.count_nonzero(mask)) for name, mask in watched.items()}


def _describe(rule: Rule) -> dict[str, Any]:
    return {
        "rule": rule.name,
        "summary": (rule.__doc__ or "").partition("\n")[0],
        "raised_when": _plain(rule.formula),
        "to_tune_it": _plain(rule.tuning),
        "settings": rule.model_dump(mode="json"),
    }


def _plain(markdown: str) -> str:
    """Return text on one line, of links the words alone."""
    return " ".join(_LINK.sub(r"\1", markdown).split())


def _watches(rule: Rule, view: RunView, num_layers: int) -> dict[str, Any]:
    """Say what a rule watches of a run; what is not about layers has no number of them."""
    if not rule.watches(view.name):
        return {"run": False, "layers": None, "warning": None}
    if not isinstance(rule, LayerRule):
        return {"run": True, "layers": None, "warning": None}
    warning = no_layers(rule, view) if view.names and not num_layers else None
    return {"run": True, "layers": num_layers, "warning": warning}


def no_layers(rule: LayerRule, view: RunView) -> str:
    """Say that a rule is limited to layers that a run has none of."""
    limits = [
        f"{key} {list(patterns)}"
        for key, patterns in (("layers", rule.layers), ("groups", rule.groups))
        if patterns
    ]
    known = f"{len(view.names)} layers in {len(view.groups)} named groups"
    return f"{' and '.join(limits)} match none of the {known}"
