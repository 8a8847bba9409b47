"""A mirror of a run in an experiment tracker, by the tracker's own function.

Typical use, here with Weights & Biases::

    from gradwatch.integrations.mirror import Mirror

    run = wandb.init(project="gpt2")
    run.define_metric("gradwatch/*", step_metric="gradwatch/step")
    mirror = Mirror(lambda numbers, step: run.log({**numbers, "gradwatch/step": step}))
    with mirror, gradwatch.attach(model, optimizer, on_alert=mirror) as watch:
        mirror.follow(watch)
        ...
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from typing import Any, Final, Self, TypeAlias
from urllib.parse import urlencode, urlsplit

from gradwatch import NullWatch, Watch
from gradwatch._faults import Faults

Log: TypeAlias = Callable[[dict[str, float], int], object]
"""A function of the user that takes the numbers of a step by name, and the step."""

COLUMNS: Final = {"norm": "gradient_norm", "loss": "loss", "score": "score"}
"""The aggregator's name of a number of the run to its name in a tracker, behind `gradwatch/`."""

MAX_ALERTS: Final = 1_000
"""Alerts that wait for a slow tracker; more of them are dropped and counted as a fault."""

MAX_STEPS: Final = 4_096
"""Steps that are read at once; of more, one number stands for several."""

MAX_ANSWER_BYTES: Final = 16 << 20
MAX_REASON_BYTES: Final = 500
TIMEOUT_S: Final = 5.0

SETTLE_S: Final = 0.5
"""Time after the end in which the aggregator publishes the last steps."""

CLOSE_S: Final = 10.0
"""Time that `close` waits for a slow tracker."""


class Mirror:
    """Mirrors one run; what `attach(on_alert=...)` takes, and a context manager.

    The numbers are those of all ranks, read from the aggregator: the norm of one rank's shard is
    never shown as if it were that of the run. A thread calls `log`; what `log` raises is logged
    once, and a call that hangs keeps neither the training nor gradwatch's own sending.

    Args:
        log: Called with each step once, then with alerts: the number of firing ones by rule.
        layers: Names of up to 16 layers whose L2 norms are mirrored, too.
        every_s: Seconds between two reads of the aggregator.

    Raises:
        ValueError: If `every_s` is not above 0.
    """

    def __init__(self, log: Log, *, layers: Sequence[str] = (), every_s: float = 10.0) -> None:
        if not every_s > 0:
            msg = f"every_s: above 0, got {every_s!r}"
            raise ValueError(msg)
        self._log, self._every_s = log, every_s
        of_run = [("column", own) for own in COLUMNS]
        of_layers = [("layer", own) for own in layers]
        self._of_run = urlencode(of_run)
        self._of_all = urlencode([*of_run, ("column", "l2"), *of_layers]) if layers else ""
        self._token = os.environ.get("GRADWATCH_TOKEN", "")
        self._faults = Faults()
        self._alerts: queue.Queue[dict[str, Any] | None] = queue.Queue(MAX_ALERTS)
        self._firing: dict[str, set[str]] = {}  # rule to ids
        self._watch: Watch | NullWatch | None = None
        self._place: tuple[int, int] | None = None  # attempt and epoch
        self._first = 0  # the step that comes next
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="gradwatch-mirror", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # before that of a tracker that was made before it

    def __call__(self, alert: dict[str, Any]) -> None:
        """Take an alert, as `attach(on_alert=...)` gives it; never waits."""
        with self._faults.noting("mirror"):
            self._alerts.put_nowait(alert)

    def follow(self, watch: Watch | NullWatch) -> None:
        """Mirror the steps of this watch, too."""
        self._watch = watch

    def close(self) -> None:
        """Mirror what is left and end, in 10 s whatever `log` does.

        Call it after the watch is closed, and before the tracker's run is.
        """
        atexit.unregister(self.close)
        self._is_closed = True
        with contextlib.suppress(queue.Full):  # then the thread sees the end before long
            self._alerts.put_nowait(None)
        self._thread.join(CLOSE_S)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _work(self) -> None:
        next_s = time.monotonic()
        while not self._is_closed:
            self._log_next_alert(next_s - time.monotonic())
            if time.monotonic() >= next_s:
                self._log_steps()
                next_s = time.monotonic() + self._every_s
        time.sleep(SETTLE_S)
        while self._log_next_alert(0.0):
            pass
        self._log_steps()

    def _log_next_alert(self, wait_s: float) -> bool:
        """Log an alert; return False if none came in time."""
        try:
            alert = self._alerts.get(timeout=max(wait_s, 0.001))
        except queue.Empty:
            return False
        if alert is not None:
            with self._faults.noting("mirror"):
                self._log_alert(alert)
        return True

    def _log_alert(self, alert: Mapping[str, Any]) -> None:
        firing = self._firing.setdefault(alert["rule"], set())
        is_over = alert["state"] == "resolved"
        (firing.discard if is_over else firing.add)(alert["id"])
        step = alert["resolved_step" if is_over else "last_step"]
        self._log({f"gradwatch/alerts/{alert['rule']}": float(len(firing))}, step)

    def _log_steps(self) -> None:
        """Log the steps that are new, once it is known where the aggregator answers."""
        watch = self._watch
        url = None if watch is None else watch.http_url
        if watch is None or url is None:
            return
        with self._faults.noting("mirror"):
            for step, numbers in self._new_steps(f"{url}/runs/{watch.run}/series"):
                with self._faults.noting("mirror"):
                    self._log(numbers, step)

    def _new_steps(self, address: str) -> Iterator[tuple[int, dict[str, float]]]:
        answer = self._ask(address, self._of_run)
        place = int(answer["attempt"]), int(answer["epoch"] or 0)
        if self._place not in (place, None):  # the steps began again, or went back
            self._first = 0
            answer = self._ask(address, self._of_run)
        if self._of_all and answer["step"]:  # no layer is known before the first step
            answer = self._ask(address, self._of_all)
        found = _by_step(answer)
        self._place, self._first = place, max(found, default=self._first - 1) + 1
        yield from found.items()

    def _ask(self, address: str, wanted: str) -> dict[str, Any]:
        parts = urlsplit(address)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        with contextlib.closing(kind(parts.netloc, timeout=TIMEOUT_S)) as connection:
            query = f"{wanted}&from={self._first}&points={MAX_STEPS}"
            connection.request("GET", f"{parts.path}?{query}", headers=headers)
            response = connection.getresponse()
            body = response.read(MAX_ANSWER_BYTES)
        if response.status != HTTPStatus.OK:
            why = body[:MAX_REASON_BYTES].decode(errors="replace")
            if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                why = "set GRADWATCH_TOKEN to the aggregator's read token"
            msg = f"the aggregator answers {response.status} to GET {address}: {why}"
            raise RuntimeError(msg)
        answer: dict[str, Any] = json.loads(body)
        return answer


def _by_step(answer: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """Return each step, of a bucket of several the first, with what was known of it."""
    found: dict[int, dict[str, float]] = {}
    for series in answer["series"]:
        name = COLUMNS.get(series["column"]) or f"{series['column']}/{series['layer']}"
        for place, step in enumerate(answer["step"]):
            value = _value(series, place)
            if value is not None:
                found.setdefault(int(step), {})[f"gradwatch/{name}"] = value
    return dict(sorted(found.items()))


def _value(series: Mapping[str, Any], place: int) -> float | None:
    """Return the end of a bucket, NaN or Inf if there was one in it; None without a value."""
    for count, value in (("nan", math.nan), ("inf", math.inf)):
        if count in series and series[count][place]:
            return value
    last: float | None = series["last"][place]
    return last
