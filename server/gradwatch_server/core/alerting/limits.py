"""Layers of an attempt that each rule watches, worked out once for its layers and its rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.arrays import BoolArray


class LimitedRules:
    """The masks of the rules that are limited to some layers, for one attempt."""

    def __init__(self) -> None:
        self._rules: Rules | None = None
        self._names: tuple[str, ...] = ()
        self._groups: Mapping[str, BoolArray] = {}
        self._masks: Mapping[str, BoolArray] = {}

    def limit(self, context: Context, rules: Rules) -> Context:
        """Return the context with one of its own for each rule that is limited to some layers."""
        masks = self._masks_of(context, rules)
        if not masks:
            return context
        return replace(
            context, limited={name: _within(context, mask) for name, mask in masks.items()}
        )

    def _masks_of(self, context: Context, rules: Rules) -> Mapping[str, BoolArray]:
        """Return rule to mask; most manifests tell of layers that are known already."""
        if (
            rules is not self._rules
            or context.names != self._names
            or not _alike(context.groups, self._groups)
        ):
            self._rules, self._names, self._groups = rules, context.names, context.groups
            self._masks = watched_layers(rules, context.names, context.groups)
        return self._masks


def watched_layers(
    rules: Rules, names: tuple[str, ...], groups: Mapping[str, BoolArray]
) -> dict[str, BoolArray]:
    """Return the layers that each rule watches, (layers,), of those that are limited to some."""
    masks = ((name, rule.watched(names, groups)) for name, rule in rules.root.items())
    return {name: mask for name, mask in masks if mask is not None}


def _within(context: Context, mask: BoolArray) -> Context:
    groups = {name: members & mask for name, members in context.groups.items()}
    return replace(context, groups=groups, watched=mask)


def _alike(some: Mapping[str, BoolArray], other: Mapping[str, BoolArray]) -> bool:
    return some.keys() == other.keys() and all(
        np.array_equal(members, other[name]) for name, members in some.items()
    )
