"""Alerts as a table: what a person looks for as columns, and all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from gradwatch_server.cli.export.tables import Table, TableColumn

_TEXTS: Final = ("id", "rule", "group", "severity", "state")
_STEPS: Final = ("first_step", "fired_step", "last_step", "resolved_step")


def alert_table(alerts: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each alert."""
    found = {name: _words([str(own[name]) for own in alerts]) for name in _TEXTS}
    found |= {name: _steps([own[name] for own in alerts]) for name in _STEPS}
    found["layer"] = _words([str((own["origin"] or {}).get("layer") or "") for own in alerts])
    found["num_layers"] = _steps([own["num_layers"] for own in alerts])
    found["message"] = _words([str(own["message"]) for own in alerts])
    found["json"] = _words([_json(own) for own in alerts])
    return found


def _json(alert: Mapping[str, Any]) -> str:
    own = {name: value for name, value in alert.items() if name != "cursor"}
    return json.dumps(own, separators=(",", ":"))


def _words(texts: Sequence[str]) -> TableColumn:
    return TableColumn(np.array(texts, dtype=np.object_))


def _steps(steps: Sequence[int | None]) -> TableColumn:
    known = np.array([step is not None for step in steps], dtype=np.bool_)
    return TableColumn(np.array([step or 0 for step in steps], dtype=np.int64), known)
