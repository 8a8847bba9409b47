"""Layers of a run in which something is wrong."""

from __future__ import annotations

from typing import Any


def gone_wrong(report: dict[str, Any]) -> dict[str, list[str]]:
    """Return the layers in which something is wrong by a run's health, to the rules that say so.

    The origins of critical alerts come first, then those of others, then the worst of the last
    step, then what else alerts name.
    """
    alerts = [own for own in report["alerts"]["items"] if own["state"] == "firing"]
    alerts.sort(key=lambda own: own["severity"] != "critical")
    told = [(own["origin"]["layer"], own["rule"]) for own in alerts]
    told += [(own["name"], own["why"]) for own in report["worst_layers"]]
    told += [(name, own["rule"]) for own in alerts for name in own["layers"]]
    found: dict[str, list[str]] = {}
    for name, rule in told:
        rules = found.setdefault(name, []) if name is not None else []
        if rule not in rules:
            rules.append(rule)
    return found
