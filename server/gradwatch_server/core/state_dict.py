"""Flags and alerts as plain data, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, Final, TypeAlias

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules import Flags
from gradwatch_server.core.packing import pack, unpack_flags
from gradwatch_wire.health import AlertState, Severity

Plain: TypeAlias = dict[str, Any]


def freeze_flags(marked: Flags | None) -> Plain | None:
    """Return plain data of flags."""
    if marked is None:
        return None
    return {field.name: pack(getattr(marked, field.name)) for field in fields(marked)}


def thaw_flags(plain: Plain | None) -> Flags | None:
    """Return what `freeze_flags` described."""
    if plain is None:
        return None
    return Flags(**{name: unpack_flags(packed) for name, packed in plain.items()})


freeze_alert: Final[Callable[[Alert], Plain]] = asdict


def thaw_alert(plain: Plain) -> Alert:
    """Return what `freeze_alert` described."""
    origin = plain["origin"] | {
        "ranks": tuple(plain["origin"]["ranks"]),
        "before": tuple((step, l2) for step, l2 in plain["origin"]["before"]),
    }
    changes = {
        "origin": Origin(**origin),
        "severity": Severity(plain["severity"]),
        "state": AlertState(plain["state"]),
        "layers": tuple(plain["layers"]),
    }
    return Alert(**plain | changes)
