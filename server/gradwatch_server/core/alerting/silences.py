"""Silences: alerts that people do not want to be told of for a while."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import translate
from functools import lru_cache
from typing import Any, Final

ANY: Final = "*"
"""The pattern that fits everything."""

MAX_SILENCES: Final = 1_000
"""Silences at a time."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Patterns in the style of `fnmatch`; an alert that fits all three is not told.

    Args:
        id: 16 hexadecimal digits.
        layers: Pattern of names of layers. Every layer of the alert must fit, so that one that
            nobody thought of is told; an alert about the run fits `*` only.
    """

    id: str
    run: str
    rule: str
    layers: str
    until_ns: int
    created_ns: int
    by: str
    comment: str

    def fits(self, run: str, rule: str, layers: Iterable[str]) -> bool:
        """Tell whether an alert of *run* and *rule* with these *layers* fits; none if of a run."""
        if not (fits(self.run, run) and fits(self.rule, rule)):
            return False
        if self.layers == ANY:
            return True
        names = iter(layers)
        first = next(names, None)
        return (
            first is not None
            and fits(self.layers, first)
            and all(fits(self.layers, name) for name in names)
        )


@dataclass(slots=True)
class Silences:
    """Silences in force, by id, in the order in which they were made.

    Attributes:
        version: Changes whenever they do.
    """

    version: int = 0
    _silences: dict[str, Silence] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Silence]:
        return iter(self._silences.values())

    def __contains__(self, silence_id: object) -> bool:
        return silence_id in self._silences

    def __len__(self) -> int:
        """Count them, also those that ended since the last was made."""
        return len(self._silences)

    def add(self, silence: Silence) -> None:
        """Add one, and drop those that have ended."""
        now_ns = silence.created_ns
        kept = {silence.id: silence for silence in self if silence.until_ns > now_ns}
        self._silences = {**kept, silence.id: silence}
        self.version += 1

    def remove(self, silence_id: str) -> None:
        self._silences.pop(silence_id, None)
        self.version += 1

    def replace(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Hold those that `state_dict` described, and no other."""
        self._silences = {each["id"]: Silence(**each) for each in state}
        self.version += 1

    def silenced_until_ns(self, run: str, rule: str, layers: Sequence[str]) -> int:
        """Return when the last silence ends that an alert fits, 0 if it fits none."""
        fitting = (silence.until_ns for silence in self if silence.fits(run, rule, layers))
        return max(fitting, default=0)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return plain data for `replace`."""
        return [asdict(silence) for silence in self]


def fits(pattern: str, name: str) -> bool:
    """Tell whether a name fits a pattern; upper and lower case differ."""
    return pattern == ANY or _compiled(pattern).match(name) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))
