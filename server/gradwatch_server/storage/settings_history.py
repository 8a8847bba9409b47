"""Rules, budgets and silences as they stood at each entry that a restart may begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from gradwatch_server.core.alerting.silences import Silences
from gradwatch_server.core.entries import (
    BudgetsSet,
    Entry,
    RulesSet,
    SilenceAdded,
    SilenceRemoved,
)
from gradwatch_server.storage.checkpoints import Position

T = TypeVar("T")


class _Versions(Generic[T]):
    """What one thing was, each time from an entry on, oldest first."""

    def __init__(self, value: T) -> None:
        self._versions = [(0, value)]

    def begin(self, offset: int, value: T) -> None:
        """Forget all others."""
        self._versions = [(offset, value)]

    def add(self, offset: int, value: T) -> None:
        """Note that an entry changes it."""
        self._versions.append((offset, value))

    def at(self, offset: int) -> T:
        """Return what it was once an entry was applied."""
        return [value for own, value in self._versions if own <= offset][-1]

    def forget_before(self, offset: int) -> None:
        """Keep what it was at an entry, and later."""
        later = [own for own in self._versions if own[0] > offset]
        self._versions = [(offset, self.at(offset)), *later]


class SettingsHistory:
    """All three, plain, since the entry with which a restart begins."""

    def __init__(self) -> None:
        self._rules = _Versions[Mapping[str, Any]]({})
        self._budgets = _Versions[Mapping[str, Any]]({})
        self._silences = _Versions[Sequence[Mapping[str, Any]]]([])

    def begin(self, position: Position, silences: Sequence[Mapping[str, Any]]) -> None:
        """Begin with what was saved; *silences* are those of it that are known here."""
        self._rules.begin(position.start, dict(position.rules))
        self._budgets.begin(position.start, dict(position.budgets))
        self._silences.begin(position.start, silences)

    def note(self, entry: Entry, offset: int, silences: Silences) -> None:
        """Note what an entry is about to change; *silences* are those before it."""
        body = entry.body
        if isinstance(body, RulesSet):
            self._rules.add(offset, dict(body.rules))
        elif isinstance(body, BudgetsSet):
            self._budgets.add(offset, dict(body.budgets))
        elif isinstance(body, SilenceAdded | SilenceRemoved):
            self._silences.add(offset, _silences_after(body, silences))

    def position(self, offset: int, behind: Mapping[str, int]) -> Position:
        """Return a position with what they were where a restart from it begins."""
        start = Position(offset, behind=behind).start
        return Position(
            offset,
            self._rules.at(start),
            behind,
            self._silences.at(start),
            self._budgets.at(start),
        )

    def forget_before(self, offset: int) -> None:
        """Keep what they were at an entry, and later."""
        for versions in (self._rules, self._budgets, self._silences):
            versions.forget_before(offset)


def _silences_after(
    body: SilenceAdded | SilenceRemoved, silences: Silences
) -> list[dict[str, Any]]:
    """Return the silences, plain, as an entry that is about to be applied leaves them."""
    after = Silences.from_state_dict(silences.state_dict())
    if isinstance(body, SilenceAdded):
        after.add(body.silence)
    else:
        after.remove(body.silence_id)
    return after.state_dict()
