"""Severities in their order."""

from __future__ import annotations

from typing import Final

from gradwatch_wire.health import Severity

_ORDER: Final = tuple(Severity)


def is_worse(one: Severity, other: Severity) -> bool:
    return _ORDER.index(one) > _ORDER.index(other)


def worse(one: Severity, other: Severity) -> Severity:
    return one if is_worse(one, other) else other
