"""What is asked of layers: how they stand at a step, and in which of them something is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from gradwatch_server.cli.client import query_of, run_path

MAX_NAMED: Final = 32
"""Names in one request: their longest, written for a URL, still fit into a header of it."""


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


def worst_path(run: str, step: int, most: int) -> str:
    """Return where the layers stand that are farthest from what is usual at a step."""
    return run_path(run, f"frames/{step}") + query_of(("worst", most))


def named_paths(run: str, step: int, names: Sequence[str]) -> list[str]:
    """Return where certain layers stand."""
    return [
        run_path(run, f"frames/{step}")
        + query_of(*(("layer", name) for name in names[first : first + MAX_NAMED]))
        for first in range(0, len(names), MAX_NAMED)
    ]


def worst_names(wrong: Iterable[str], layers: Iterable[dict[str, Any]], most: int) -> list[str]:
    """Return the names of the worst layers.

    Args:
        wrong: Those in which something is wrong, the worst first.
        layers: Those farthest from usual, the worst first.
        most: How many at most.
    """
    names = dict.fromkeys((*wrong, *(own["name"] for own in layers)))
    return list(names)[:most]
