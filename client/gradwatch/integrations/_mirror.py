"""What mirrors a run into an experiment tracker: alerts, the run's address, and key series.

Series are read from the aggregator, which knows the run over all its ranks; nothing that one rank
knows is shown as if it were of all. Everything is done in a thread of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Protocol, Self

from gradwatch import NullWatch, Watch
from gradwatch._faults import Faults
from gradwatch.integrations._series import SeriesReader
from gradwatch_wire.run_page import run_page

MAX_ALERTS: Final = 1_000
"""Alerts that wait for a tracker that is slow; more of them are dropped and counted as a fault."""

LINK_EVERY_S: Final = 1.0
"""How often it is looked whether the aggregator has said where the run is seen."""

SETTLE_S: Final = 0.5
"""Time after the watch is closed in which its last steps are published."""

CLOSE_S: Final = 10.0
"""How long `close` waits for a tracker that is slow."""


class Tracker(Protocol):
    """What is asked of a tracker; called in the mirror's thread, and may raise.

    Attributes:
        name: What people call it.
    """

    name: str

    def url(self) -> str | None:
        """Return where its run is seen; None if that is not known."""

    def link(self, run: str, url: str) -> None:
        """Note where the run's page is."""

    def log(self, steps: Mapping[int, Mapping[str, float]]) -> None:
        """Add the numbers of steps, by the names that they are to have."""

    def alert(self, alert: Mapping[str, Any]) -> None:
        """Note an alert that fires, has news, or is resolved."""

    def flush(self) -> None:
        """Write what was noted."""


class Mirror:
    """Mirrors one run; it is what `attach(on_alert=...)` is given, and a context manager.

    Args:
        tracker: Where to.
        every_s: How often series are read, seconds.

    Raises:
        ValueError: If `every_s` is not above 0.
    """

    def __init__(self, tracker: Tracker, *, every_s: float = 10.0) -> None:
        if not every_s > 0:
            msg = f"every_s: above 0, got {every_s!r}"
            raise ValueError(msg)
        self._tracker = tracker
        self._every_s = every_s
        self._faults = Faults()
        self._alerts: queue.Queue[dict[str, Any] | None] = queue.Queue(MAX_ALERTS)
        self._watch: Watch | NullWatch | None = None
        self._series: SeriesReader | None = None
        self._is_linked = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="gradwatch-mirror", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # before that of a tracker that was made before it

    def __call__(self, alert: dict[str, Any]) -> None:
        """Take an alert, as `attach(on_alert=...)` gives it; never waits."""
        with self._faults.noting("mirror"):
            self._alerts.put_nowait(alert)

    def follow(self, watch: Watch | NullWatch) -> None:
        """Mirror the series of this watch, too, and link the two runs to one another."""
        self._watch = watch
        with contextlib.suppress(queue.Full):  # then the thread sees it before long
            self._alerts.put_nowait(None)

    def close(self) -> None:
        """Mirror what is left and end, in 10 s whatever the tracker does.

        Call it after the watch is closed, and before the tracker's run is.
        """
        atexit.unregister(self.close)
        if not self._is_closed:
            self._is_closed = True
            with contextlib.suppress(queue.Full):  # then the thread sees it before long
                self._alerts.put_nowait(None)
        self._thread.join(CLOSE_S)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _work(self) -> None:
        next_s = time.monotonic()
        while not self._is_closed:
            self._mirror_alerts(until_s=next_s)
            self._link_tracker()
            self._mirror_series()
            wait_s = min(self._every_s, LINK_EVERY_S) if self._series is None else self._every_s
            next_s = time.monotonic() + wait_s
        time.sleep(SETTLE_S)
        self._mirror_alerts(until_s=time.monotonic())
        self._mirror_series()
        with self._faults.noting("mirror"):
            self._tracker.flush()

    def _mirror_alerts(self, until_s: float) -> None:
        """Mirror alerts as they come, until a time, or until something else is to be done."""
        while True:
            try:
                wait_s = until_s - time.monotonic()
                alert = self._alerts.get(timeout=wait_s) if wait_s > 0 else self._alerts.get(False)
            except queue.Empty:
                return
            if alert is None:  # it is to look around: what else waits is taken, no more awaited
                until_s = 0.0
                continue
            with self._faults.noting("mirror"):
                self._tracker.alert(alert)

    def _link_tracker(self) -> None:
        """Tell gradwatch, once, where the tracker's run is seen."""
        watch = self._watch
        if watch is None or self._is_linked:
            return
        with self._faults.noting("mirror"):
            url = self._tracker.url()
            self._is_linked = True
            if url is not None:
                watch.link(self._tracker.name, url)

    def _mirror_series(self) -> None:
        """Mirror the steps that are new; where the run is seen is known once it was answered."""
        watch = self._watch
        with self._faults.noting("mirror"):
            if watch is not None and (url := watch.http_url) is not None:
                if self._series is None:
                    self._series = SeriesReader(url, watch.run)
                    self._tracker.link(watch.run, run_page(url, watch.run))
                elif url != self._series.url:
                    self._series.ask_at(url)
            if self._series is not None and (steps := self._series.read()):
                self._tracker.log(steps)


def title_of(alert: Mapping[str, Any]) -> str:
    """Return an alert in a few words: `critical: nonfinite in gpt2`, `resolved: ...`."""
    is_over = alert["state"] == "resolved"
    return f"{'resolved' if is_over else alert['severity']}: {alert['rule']} in {alert['run']}"
