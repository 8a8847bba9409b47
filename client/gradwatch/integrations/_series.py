"""Key series of a run as the aggregator answers them over HTTP, over all ranks."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

COLUMNS: Final[Mapping[str, str]] = {
    "norm": "gradwatch/gradient_norm",
    "loss": "gradwatch/loss",
    "score": "gradwatch/score",
}
"""The aggregator's name of a series to that which it has in a tracker."""

MAX_STEPS: Final = 4_096
"""Steps that are read at once; of more, each bucket's last."""

TIMEOUT_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 16 << 20


class SeriesError(Exception):
    """The aggregator did not give them; the text says why."""


class SeriesReader:
    """Reads the steps that are new.

    Args:
        url: Where the aggregator answers HTTP, such as `http://127.0.0.1:8420`.
        run: Name of the run.
    """

    def __init__(self, url: str, run: str) -> None:
        self._run = run
        self.ask_at(url)
        self._token = os.environ.get("GRADWATCH_TOKEN", "")
        self._place: tuple[int, int] | None = None  # attempt and epoch
        self._after = -1

    def ask_at(self, url: str) -> None:
        """Ask there from now on, for what comes next: another node of a cluster answers, say."""
        self.url = url
        parts = urlsplit(url)
        self._netloc = parts.netloc
        self._path = f"{parts.path}/runs/{self._run}"
        self._connection_type = HTTPSConnection if parts.scheme == "https" else HTTPConnection

    def read(self) -> dict[int, dict[str, float]]:
        """Return steps to their numbers by the names of `COLUMNS`; each step once.

        Raises:
            SeriesError: If the aggregator does not answer with them.
            OSError: If it cannot be reached.
        """
        answer = self._ask(self._after + 1)
        place = int(answer["attempt"]), int(answer["epoch"] or 0)
        if self._place not in (place, None):  # the steps began again, or went back
            self._after = -1
            answer = self._ask(0)
        self._place = place
        found = _by_step(answer)
        self._after = max(found, default=self._after)
        return found

    def _ask(self, first: int) -> dict[str, Any]:
        wanted = "&".join(f"column={column}" for column in COLUMNS)
        path = f"{self._path}/series?{wanted}&from={first}&points={MAX_STEPS}"
        connection = self._connection_type(self._netloc, timeout=TIMEOUT_S)
        try:
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read(MAX_ANSWER_BYTES)
        finally:
            connection.close()
        if response.status in (401, 403):
            msg = "the aggregator asks for a token; set GRADWATCH_TOKEN to its read token"
            raise SeriesError(msg)
        if response.status != 200:
            msg = f"the aggregator answers {response.status} to GET {self._path}/series"
            raise SeriesError(msg)
        answer: dict[str, Any] = json.loads(body)
        return answer


def _by_step(answer: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """Return each step, of a bucket of several the first, with what was known of it."""
    found: dict[int, dict[str, float]] = {}
    for series in answer["series"]:
        name = COLUMNS[series["column"]]
        for place, step in enumerate(answer["step"]):
            value = _value(series, place)
            if value is not None:
                found.setdefault(int(step), {})[name] = value
    return dict(sorted(found.items()))


def _value(series: Mapping[str, Any], place: int) -> float | None:
    """Return what a bucket ended with, NaN or Inf if there was one in it; None without any."""
    if not series["n"][place]:
        return None
    for count, value in (("nan", math.nan), ("inf", math.inf)):
        if count in series and series[count][place]:
            return value
    last = series["last"][place]
    return None if last is None else float(last)
