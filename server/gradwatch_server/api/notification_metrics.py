"""What became of notifications, for `/metrics`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gradwatch_server.notify.notifications import Notifications
from gradwatch_server.notify.worker import Outcome


class NotificationCollector(Collector):
    """Makes the metrics of the targets: their names are those of the settings, so they are few."""

    def __init__(self, notifications: Notifications) -> None:
        self._notifications = notifications

    def collect(self) -> Iterator[Metric]:
        """Yield each metric as it stands; none where there are no targets."""
        statuses = self._notifications.statuses()
        if not statuses:
            return
        messages = CounterMetricFamily(
            "gradwatch_notifications",
            "Messages to targets since the start, by what became of each attempt.",
            labels=["target", "result"],
        )
        pending = GaugeMetricFamily(
            "gradwatch_notifications_pending",
            "Alerts that a target is still to be told of.",
            labels=["target"],
        )
        age = GaugeMetricFamily(
            "gradwatch_notifications_last_success_age_seconds",
            "Time since a message was delivered to a target that ever had one.",
            labels=["target"],
        )
        now_s = time.time()
        for own in statuses:
            for result in Outcome:
                messages.add_metric([own.name, str(result)], own.messages.get(result, 0))
            pending.add_metric([own.name], own.num_pending)
            if own.succeeded_s is not None:
                age.add_metric([own.name], max(now_s - own.succeeded_s, 0.0))
        yield from (messages, pending, age)
