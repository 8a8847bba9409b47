"""Other rules: given by any thread, put into the log of each run by the engine's."""

from __future__ import annotations

import logging
from collections import deque

from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import RulesSet
from gradwatch_server.core.state import State
from gradwatch_server.engine.batch import Batch

logger = logging.getLogger(__name__)


class NewRules:
    """The newest that were given."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._given: deque[Rules] = deque(maxlen=1)  # and not in the log yet

    def give(self, rules: Rules) -> None:
        """Put rules in force with the next round; any thread may ask for it."""
        self._given.append(rules)

    def add(self, now_ns: int, batch: Batch) -> None:
        """Add the entries that put them in force, if they are other ones."""
        if not self._given:
            return
        rules = self._given.popleft()
        if rules == self._state.rules:
            logger.info("the rules are those in force already")
            return
        differing = ", ".join(rules.differing(self._state.rules))
        logger.info("rules put in force that differ in %s", differing)
        self._state.rules = rules
        for name in self._state.runs:
            batch.add(name, now_ns, RulesSet(rules.model_dump(mode="json")))
