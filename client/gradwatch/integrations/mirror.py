"""A mirror of a run in an experiment tracker, by the tracker's own function.

Typical use, here with Weights & Biases::

    from gradwatch.integrations.mirror import Mirror

    run = wandb.init(project="gpt2")
    run.define_metric("gradwatch/*", step_metric="gradwatch/step")
    watch = gradwatch.attach(model, optimizer)
    with Mirror(watch, lambda numbers, step: run.log({**numbers, "gradwatch/step": step})):
        ...
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from types import TracebackType
from typing import Any, Final, Self, TypeAlias
from urllib.parse import urlencode, urlsplit

from gradwatch import NullWatch, Watch
from gradwatch._faults import Faults

Log: TypeAlias = Callable[[dict[str, float], int], object]
"""A function of the user that takes the numbers of a step by name, and the step."""

COLUMNS: Final = {"norm": "gradient_norm", "loss": "loss", "score": "score"}
"""The aggregator's name of a number of the run to its name in a tracker, behind `gradwatch/`."""

MAX_STEPS: Final = 4_096
"""Steps that are read at once; of more, one number stands for several."""

MAX_ANSWER_BYTES: Final = 16 << 20
MAX_REASON_BYTES: Final = 500
TIMEOUT_S: Final = 5.0

SETTLE_S: Final = 0.25
"""Seconds between two looks after the end, until one shows nothing new."""

UNKNOWN_S: Final = 5.0
"""Seconds in which the aggregator may not know the run yet."""

CLOSE_S: Final = 10.0
"""Time that `close` takes at most, with a slow tracker."""


class _UnknownRunError(RuntimeError):
    """The aggregator does not know the run, or not yet."""


class Mirror:
    """Mirrors the run of a watch from now on; a context manager.

    The numbers are those of all ranks, read from the aggregator: the norm of one rank's shard is
    never shown as if it were that of the run. A thread calls `log`; what `log` raises is logged
    once, and a call that hangs keeps neither the training nor gradwatch's own sending.

    Args:
        watch: What `attach` returned.
        log: Called with each step once, and with alerts: the number of firing ones by rule.
        layers: Names of up to 16 layers whose L2 norms are mirrored, too.
        every_s: Seconds between two reads of the aggregator.

    Raises:
        ValueError: If `every_s` is not above 0.
    """

    def __init__(
        self,
        watch: Watch | NullWatch,
        log: Log,
        *,
        layers: Sequence[str] = (),
        every_s: float = 10.0,
    ) -> None:
        if not every_s > 0:
            msg = f"every_s: above 0, got {every_s!r}"
            raise ValueError(msg)
        self._watch, self._log, self._every_s = watch, log, every_s
        of_run = [("column", own) for own in COLUMNS]
        of_layers = [("layer", layer) for layer in layers]
        self._of_run = urlencode(of_run)
        self._of_all = urlencode([*of_run, ("column", "l2"), *of_layers]) if layers else ""
        self._token = os.environ.get("GRADWATCH_TOKEN", "")
        self._faults = Faults()
        self._place: tuple[int, int] | None = None  # attempt and epoch
        self._first = 0  # the step that comes next
        self._unknown_since_s: float | None = None  # from here on the run was not known
        self._told: set[tuple[str, int, bool]] = set()  # id of an alert, step, whether it is over
        self._firing: Counter[tuple[int, str]] = Counter()  # by attempt and rule
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="gradwatch-mirror", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # before that of a tracker that was made before it

    def close(self) -> None:
        """Close the watch, mirror what is left and end, in 10 s whatever `log` does.

        Call it before the tracker's run is ended.
        """
        self._end(self._watch.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, and let the watch say whether an exception ended the training."""
        self._end(lambda: self._watch.__exit__(kind, error, trace))

    def _end(self, close_watch: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + CLOSE_S
        atexit.unregister(self.close)
        close_watch()
        self._closing.set()
        self._thread.join(max(0.0, deadline_s - time.monotonic()))

    def _work(self) -> None:
        while not self._closing.wait(self._every_s):
            self._mirror()
        # What is acknowledged is published a moment later, and longer on a busy machine.
        deadline_s = time.monotonic() + CLOSE_S
        while self._mirror() and time.monotonic() < deadline_s:
            time.sleep(SETTLE_S)

    def _mirror(self) -> bool:
        """Log what is new, and return whether there may be more.

        There may be while something new came, and while the aggregator does not know the run.
        """
        url = self._watch.http_url
        if url is None:
            return False
        before = self._place, self._first
        with self._faults.noting("mirror"):
            address = f"{url}/runs/{self._watch.run}"
            try:
                self._log_steps(f"{address}/series")
            except _UnknownRunError:
                since_s = self._unknown_since_s or time.monotonic()
                self._unknown_since_s = since_s
                if time.monotonic() - since_s >= UNKNOWN_S:  # a wrong name, and no late answer
                    raise
                return True
            self._unknown_since_s = None
            self._log_alerts(f"{address}/alerts")
        return before != (self._place, self._first)

    def _log_steps(self, address: str) -> None:
        newest = self._ask(f"{address}?column=norm&points=1")
        before, self._place = self._place, (int(newest["attempt"]), int(newest["epoch"] or 0))
        if before is not None and before != self._place:  # the steps began again, or went back
            with self._faults.noting("mirror"):
                self._log_place(address, before)  # the rest of it
            self._first = 0
        self._log_place(address, self._place)

    def _log_place(self, address: str, place: tuple[int, int]) -> None:
        address += "?attempt={}&epoch={}".format(*place)
        answer = self._series(address, self._of_run)
        if self._of_all and answer["step"]:  # no layer is known before the first step
            answer = self._series(address, self._of_all)
        found = _by_step(answer)
        self._first = max(found, default=self._first - 1) + 1
        for step, numbers in found.items():
            self._tell(numbers, step)

    def _log_alerts(self, address: str) -> None:
        attempt = self._place[0] if self._place else 1
        changes = [
            (step, is_over, alert["rule"], alert["id"])
            for alert in self._ask(f"{address}?attempt={attempt}")
            for is_over, step in ((False, alert["fired_step"]), (True, alert["resolved_step"]))
            if step is not None and (alert["id"], step, is_over) not in self._told
        ]
        for step, is_over, rule, alert_id in sorted(changes):
            self._told.add((alert_id, step, is_over))
            self._firing[attempt, rule] += -1 if is_over else 1
            self._tell({f"gradwatch/alerts/{rule}": float(self._firing[attempt, rule])}, step)

    def _tell(self, numbers: dict[str, float], step: int) -> None:
        try:
            self._log(numbers, step)
        except BaseException as error:  # noqa: BLE001 - the user's code, `sys.exit()` too
            self._faults.note("mirror", repr(error))

    def _series(self, address: str, wanted: str) -> dict[str, Any]:
        query = f"{wanted}&from={self._first}&points={MAX_STEPS}"
        answer: dict[str, Any] = self._ask(f"{address}&{query}")
        return answer

    def _ask(self, address: str) -> Any:
        parts = urlsplit(address)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        connection = HTTPConnection(parts.netloc, timeout=TIMEOUT_S)
        if parts.scheme == "https":
            trusted = ssl.create_default_context(cafile=os.environ.get("GRADWATCH_CA") or None)
            connection = HTTPSConnection(parts.netloc, timeout=TIMEOUT_S, context=trusted)
        with contextlib.closing(connection):
            connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
            response = connection.getresponse()
            body = response.read(MAX_ANSWER_BYTES)
        if response.status != HTTPStatus.OK:
            why = body[:MAX_REASON_BYTES].decode(errors="replace")
            if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                why = "set GRADWATCH_TOKEN to the aggregator's read token"
            msg = f"the aggregator answers {response.status} to GET {parts.path}: {why}"
            if response.status == HTTPStatus.NOT_FOUND:
                raise _UnknownRunError(msg)
            raise RuntimeError(msg)
        return json.loads(body)


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
