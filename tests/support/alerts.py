"""Alerts as rules raise them, made by hand."""

from __future__ import annotations

from typing import Any

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_wire.health import AlertState, Severity


def alert(
    rule: str,
    *,
    group: str = "seed/host",
    ranks: tuple[int, ...] = (0,),
    layers: int = 0,
    **origin: Any,
) -> Alert:
    """Return an alert of a rule with such an origin."""
    rank = ranks[0] if len(ranks) == 1 else None
    known: dict[str, Any] = {"layer": None, "kind": None, "value": 0.0, "threshold": None}
    found = Origin(rank=rank, ranks=ranks, **{"step": 79, **known, **origin})
    return Alert(
        id="f" * 16,
        run="gpt",
        attempt=1,
        rule=rule,
        group=group,
        severity=Severity.WARNING,
        state=AlertState.FIRING,
        first_step=found.step,
        fired_step=found.step,
        raised_step=None,
        resolved_step=None,
        last_step=found.step,
        origin=found,
        layers=("a", "b", "c", "d")[:layers],
        num_layers=layers,
        updated_ns=0,
        message="",
        ranks=ranks,
    )
