"""A run that flaps, with names made to be large, against a real process."""

from __future__ import annotations

import json
import math
from typing import Any

from tests.server.api.test_metrics import metrics as metrics  # a fixture  # noqa: PLC0414
from tests.support.waiting import wait_until

LAYERS = 60
NAMES = ["\x01" * 500 + f"{n}" for n in range(LAYERS)]
GROUPS = {"\x02" * 400 + f"{n}": (n,) for n in range(LAYERS)}
BODY_BYTES = 16_384


def test_it_is_told_within_its_budget_and_its_client_can_read_all(metrics: Any) -> None:
    """60 alerts that turn bad and good again 20 times: 2,400 events without a budget.

    And one that says that the good gradients are always the same.
    """
    service = metrics.service
    peer = service.peer(run="flaps").attach(NAMES, groups=GROUPS)
    for step in range(240):
        peer.stats(step, [math.nan if step // 6 % 2 else 1.0] * LAYERS)
    wait_until(lambda: service.get("/runs/flaps/health").json()["step"] == 239)
    stored = service.get("/alerts?run=flaps&limit=1000").raise_for_status().json()

    assert 150 < len(stored) < 400
    assert all(len(json.dumps(alert)) <= BODY_BYTES + 100 for alert in stored)  # and its cursor
    found = service.get("/runs/flaps/health").json()["alerts"]["items"]
    items = [alert for alert in found if alert["rule"] == "nonfinite"]
    assert len(items) == LAYERS
    assert max(alert["num_flaps"] for alert in items) > 5
    wait_until(lambda: metrics()["gradwatch_budget_refused_total", "alert_events_per_min"] > 0)

    def told() -> set[tuple[str, str]]:
        peer.received()
        return {(str(alert["id"]), str(alert["state"])) for alert in peer.alerts}

    wait_until(lambda: {(own["id"], own["state"]) for own in stored} <= told())
