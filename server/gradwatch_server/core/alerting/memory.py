"""Memories of rules: what they know of an attempt from one observation to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gradwatch_server.core.state_codec import decode, encode


class Memories(dict[str, Any]):
    """The memories of one attempt by the name of the rule, dataclasses that `state_codec` saves.

    A saved memory waits as plain data until the rules are known that can read it.
    """

    def __init__(self, saved: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._saved = dict(saved or {})

    def follow(self, kinds: Iterable[tuple[str, type | None]]) -> None:
        """Hold a memory for each rule that has one; those of other rules are forgotten.

        Args:
            kinds: Names of rules, and the class of the memory of each.
        """
        known, saved = dict(self), self._saved
        self.clear()
        self._saved = {}
        for name, kind in kinds:
            if kind is None:
                continue
            if isinstance(known.get(name), kind):
                self[name] = known[name]
            else:
                self[name] = _restored(saved[name], kind) if name in saved else kind()

    def state_dict(self) -> dict[str, Any]:
        """Return plain data to be given to a new one."""
        return {**self._saved, **{name: encode(own) for name, own in self.items()}}


def _restored(plain: Any, kind: type) -> Any:
    try:
        return decode(plain, kind)
    except Exception:  # noqa: BLE001 - whatever it is, what was known is of no use to this rule
        return kind()
