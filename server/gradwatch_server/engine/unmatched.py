"""Tells an operator once of a rule whose patterns match no layer of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.printable import printable
from gradwatch_server.core.views.rules import count_watched, no_layers
from gradwatch_server.core.views.snapshot import RunView

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Looked:
    """What was looked at last of a run."""

    attempt: int
    num_layers: int
    rules: Rules

    def is_of(self, view: RunView, rules: Rules) -> bool:
        return (
            self.rules is rules
            and self.num_layers == len(view.names)
            and self.attempt == view.attempt
        )


class UnmatchedRules:
    """Looks at each run once it has a frame, and again when its layers or the rules are others."""

    def __init__(self) -> None:
        self._looked: dict[str, _Looked] = {}
        self._told: set[tuple[str, str]] = set()

    def look(self, views: Iterable[RunView], rules: Rules) -> None:
        """Log what matches nothing; before the first frame layers may still be declared."""
        for view in views:
            looked = self._looked.get(view.name)
            if not view.frames or (looked is not None and looked.is_of(view, rules)):
                continue
            if looked is not None and looked.rules is not rules:
                self._forget(view.name)
            self._looked[view.name] = _Looked(view.attempt, len(view.names), rules)
            self._tell(view, rules)

    def remove(self, run: str) -> None:
        """Forget a run that left memory."""
        self._looked.pop(run, None)
        self._forget(run)

    def _forget(self, run: str) -> None:
        self._told = {key for key in self._told if key[0] != run}

    def _tell(self, view: RunView, rules: Rules) -> None:
        for name, count in count_watched(rules, view).items():
            rule = rules.root[name]
            if count or not isinstance(rule, LayerRule) or (view.name, name) in self._told:
                continue
            self._told.add((view.name, name))
            says = printable(f"rule {name} watches no layer of run {view.name}: ")
            logger.warning("%s", says + printable(no_layers(rule, view)))
