"""Memories of rules: facts that they know of an attempt from one observation to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from gradwatch_server.core.state_codec import Shared, decode, encode


@dataclass(frozen=True, slots=True)
class MemoriesState:
    """Encoded memories by the name of the rule."""

    saved: dict[str, bytes]


class Memories(Shared):
    """Memories of one attempt by the name of the rule, a dataclass each.

    A saved memory waits as bytes until the rules are known that can read it.
    """

    STATE = MemoriesState
    __slots__ = ("_memories", "_saved")

    def __init__(self, saved: Mapping[str, bytes] | None = None) -> None:
        self._memories: dict[str, Any] = {}
        self._saved = dict(saved or {})

    def __getitem__(self, rule: str) -> Any:
        return self._memories[rule]

    def update(self, kinds: Iterable[tuple[str, type | None]]) -> None:
        """Hold a memory for each rule that has one; those of other rules are forgotten.

        Args:
            kinds: Names of rules, and the class of the memory of each.
        """
        known, saved = self._memories, self._saved
        self._memories, self._saved = {}, {}
        for name, kind in kinds:
            if kind is None:
                continue
            if isinstance(known.get(name), kind):
                self._memories[name] = known[name]
            else:
                self._memories[name] = _restored(saved[name], kind) if name in saved else kind()

    def resume(self, before: Self, step: int, num_frames: int) -> None:
        """Go on from the attempt before, in the rules whose memories outlive an attempt."""
        for name, memory in before._memories.items():
            if hasattr(memory, "resumed"):
                self._memories[name] = memory.resumed(step, num_frames)

    def to_state(self) -> MemoriesState:
        known = {name: encode(memory) for name, memory in self._memories.items()}
        return MemoriesState({**self._saved, **known})

    @classmethod
    def from_state(cls, state: MemoriesState) -> Self:
        return cls(state.saved)


def _restored(body: bytes, kind: type) -> Any:
    try:
        return decode(body, kind)
    except Exception:  # noqa: BLE001 - whatever it is, what was known is of no use to this rule
        return kind()
