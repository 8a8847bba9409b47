"""Installed packages, by what their metadata say: nothing is imported for it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import zip_longest
from typing import Final

DISTRIBUTION: Final = "gradwatch"

_NUMBERS: Final = re.compile(r"\d+(?:\.\d+)*")
_REQUIREMENT: Final = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[(?P<extras>[^\]]*)\])?\s*\(?(?P<range>[^;)]*)\)?\s*"
    r"(?:;.*\bextra\s*==\s*['\"](?P<extra>[^'\"]+)['\"].*)?"
)
_COMPARE: Final[Mapping[str, Callable[[list[int], list[int]], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "<": operator.lt,
}
_BOUND: Final = re.compile(r"(>=|<=|==|<)\s*([^,\s]+)")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that gradwatch asks for.

    Args:
        name: Of its distribution.
        range: The versions that fit, such as `>=1.2,<2`; empty for all.
        extra: The extra that asks for it, empty if gradwatch itself does.
        extras: Extras of it that are asked for.
    """

    name: str
    range: str
    extra: str
    extras: tuple[str, ...] = ()

    def installed(self) -> str | None:
        """Return the version that is installed, None if none is."""
        return version_of(self.name)

    def fits(self, found: str) -> bool:
        """Tell whether a version is one that is asked for."""
        return all(_holds(found, how, bound) for how, bound in _BOUND.findall(self.range))

    def __str__(self) -> str:
        """Return it as pip takes it."""
        return self.name + self.range


def version_of(name: str) -> str | None:
    """Return the version of a distribution that is installed, None if it is not."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def requirements() -> list[Requirement]:
    """Return all that gradwatch and its extras ask for; nothing where it is not installed."""
    try:
        texts = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []
    return [found for text in texts if (found := _parsed(text)) is not None]


def of_extra(extra: str, known: Iterable[Requirement]) -> Iterator[Requirement]:
    """Yield what an extra asks for, and what the extras do that it is made of."""
    known = list(known)
    for requirement in known:
        if requirement.extra != extra:
            continue
        if requirement.name == DISTRIBUTION:
            for part in requirement.extras:
                yield from of_extra(part, known)
        else:
            yield requirement


def complaints(wanted: Iterable[Requirement]) -> list[str]:
    """Return what is missing or of another version than is asked for, a text each."""
    found = []
    for requirement in wanted:
        installed = requirement.installed()
        if installed is None:
            found.append(f"{requirement} is not installed")
        elif not requirement.fits(installed):
            found.append(f"{requirement.name} {installed} is not {requirement.range}")
    return found


def _parsed(text: str) -> Requirement | None:
    match = _REQUIREMENT.match(text)
    if match is None:
        return None
    extras = tuple(part.strip() for part in (match["extras"] or "").split(",") if part.strip())
    return Requirement(match["name"], match["range"].strip(), match["extra"] or "", extras)


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with: `2.9.0+cpu` is (2, 9, 0)."""
    match = _NUMBERS.match(text)
    return tuple(map(int, match[0].split("."))) if match is not None else ()


def _holds(found: str, how: str, bound: str) -> bool:
    """Tell whether a version is within a bound, by their numbers alone."""
    pairs = list(zip_longest(numbers(found), numbers(bound), fillvalue=0))
    return _COMPARE[how]([own for own, _ in pairs], [other for _, other in pairs])
