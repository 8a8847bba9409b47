"""The tables in docs/ of budgets, metrics, checks and settings of targets, from the definitions."""

from __future__ import annotations

import json
from typing import Any, Final

from gradwatch_server.api.metrics.definitions import METRICS
from gradwatch_server.budgets import BUDGETS, GIB, KIB, MIB, Budget
from gradwatch_server.cli.doctor.client import CLIENT_CHECKS
from gradwatch_server.cli.doctor.report import Check
from gradwatch_server.cli.doctor.server import SERVER_CHECKS
from gradwatch_server.notify.notifiers import NOTIFIERS
from gradwatch_server.notify.settings import Target

BUDGET_TABLE: Final = "<!-- The table of budgets, written by scripts/docs. -->\n"
METRIC_TABLE: Final = "<!-- The table of metrics, written by scripts/docs. -->\n"
CHECK_TABLE: Final = "<!-- The checks, written by scripts/docs. -->\n"
TARGET_TABLE: Final = "<!-- The table of settings, written by scripts/docs. -->\n"


def _table(heads: str, rows: list[str]) -> str:
    return "\n".join((heads, "|" + "---|" * (heads.count("|") - 1), *rows)) + "\n"


def budgets() -> str:
    """Return all budgets."""
    heads = "| budget | default | of | meaning | reason | at the limit |"
    rows = [
        f"| `{own.name}` | {shown(own)} | {own.per} | {own.description} | {own.reason} | "
        f"{own.at_limit} |"
        for own in BUDGETS
    ]
    return _table(heads, rows)


def shown(budget: Budget) -> str:
    """Return a default for people: `64 MiB`, `60 per min`, `1,000`."""
    if budget.unit == "bytes":
        sizes = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "bytes"))
        size, name = next(unit for unit in sizes if budget.default >= unit[0])
        return f"{budget.default / size:g} {name}"
    return f"{budget.default:,g}{'' if budget.unit == 'count' else f' {budget.unit}'}"


def metrics() -> str:
    """Return all metrics."""
    labels = {own.name: ", ".join(f"`{label}`" for label in own.labels) for own in METRICS}
    rows = [f"| `{own.name}` | {own.type} | {labels[own.name]} | {own.what} |" for own in METRICS]
    return _table("| metric | type | labels | what it is |", rows)


def checks() -> str:
    """Return all checks of `gradwatch doctor`."""
    sides: tuple[tuple[str, tuple[Check[Any], ...]], ...]
    sides = (("server", SERVER_CHECKS), ("client", CLIENT_CHECKS))
    rows = [f"| {side} | `{own.name}` | {own.looks_at} |" for side, found in sides for own in found]
    return _table("| side | check | looks at |", rows)


def targets() -> str:
    """Return what can be set of a target of notifications."""
    rows = []
    for key, field in Target.model_fields.items():
        types = [name for name, kind in NOTIFIERS.items() if key not in kind.unused]
        of = "all" if len(types) == len(NOTIFIERS) else ", ".join(f"`{name}`" for name in types)
        rows.append(f"| `{key}` | {_default(field.default)} | {of} | {field.description} |")
    return _table("| key | default | of type | what it is |", rows)


def _default(value: Any) -> str:
    """Return a default as it would be written in the file."""
    if value is None:
        return ""
    return f"`{json.dumps(list(map(str, value)) if isinstance(value, tuple) else value)}`"
