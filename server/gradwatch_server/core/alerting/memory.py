"""What rules remember of an attempt from one observation to the next, also over a restart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class RuleMemory(Protocol):
    """What one rule knows of the observations of one attempt that it has seen."""

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`: what msgpack encodes, arrays by `pack`."""
        ...

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` of another one described, maybe one with other settings.

        Raises:
            Exception: Of any kind if it is not of use; a new memory then begins.
        """
        ...


class Remembering(Protocol):
    """A rule, as far as memories go."""

    def memory(self) -> RuleMemory | None:
        """Return a new memory, None if the rule needs none."""
        ...


class Memories(dict[str, RuleMemory]):
    """The memories of one attempt by the name of the rule, for the rules that `follow` was given.

    What was saved waits as plain data until the rules are known that can read it.
    """

    def __init__(self, saved: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        super().__init__()
        self._saved = dict(saved or {})

    def follow(self, rules: Iterable[tuple[str, Remembering]]) -> None:
        """Hold a memory for each rule that has one; those of other rules are forgotten.

        Each is made by the rule as it is now set, and takes over what the one of its name knew.
        """
        known = self.state_dict()
        self.clear()
        self._saved = {}
        for name, rule in rules:
            memory = rule.memory()
            if memory is not None:
                self[name] = _resumed(rule, memory, known[name]) if name in known else memory

    def state_dict(self) -> dict[str, Mapping[str, Any]]:
        """Return plain data to be given to a new one."""
        return {**self._saved, **{name: own.state_dict() for name, own in self.items()}}


def _resumed(rule: Remembering, memory: RuleMemory, plain: Mapping[str, Any]) -> RuleMemory:
    try:
        memory.load_state_dict(plain)
    except Exception:  # noqa: BLE001 - whatever it is, what was known is of no use to this rule
        return rule.memory() or memory  # a new one: half of the other is in this
    return memory
