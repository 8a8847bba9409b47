"""What comes in: the steps of rank 0 and the alerts of the aggregator."""

from __future__ import annotations

import re
import time
from queue import Queue
from typing import IO, Final, NamedTuple, TypeAlias

import httpx
import httpx_sse
from pydantic import BaseModel, Field

STEP: Final = re.compile(r"step +(\d+)  loss +(\S+)  norm +(\S+)")


class Step(NamedTuple):
    """A line of rank 0: the step, its own loss, the gradient norm before clipping."""

    number: int
    loss: float
    norm: float
    at_s: float


class Origin(BaseModel):
    """Where the trouble began."""

    layer: str | None
    ranks: tuple[int, ...]
    bad_loss: bool | None = None


class Alert(BaseModel):
    """An event of the alert stream, and when it arrived."""

    cursor: int
    state: str
    severity: str
    rule: str
    message: str
    first_step: int
    fired_step: int
    origin: Origin
    received_s: float = Field(default_factory=time.monotonic)


Inbox: TypeAlias = "Queue[Step | Alert | str]"  # a string says why there are no more alerts


def read_steps(output: IO[str], inbox: Inbox) -> None:
    """Pass on the steps that a rank prints."""
    for line in output:
        if match := STEP.match(line):
            number, loss, norm = match.groups()
            inbox.put(Step(int(number), float(loss), float(norm), time.monotonic()))


def read_alerts(url: str, inbox: Inbox) -> None:
    """Pass on all alerts as they come, from the first one on; at the end say why it ended."""
    client = httpx.Client(trust_env=False, timeout=httpx.Timeout(10.0, read=60.0))
    first = {"Last-Event-ID": "0"}
    try:
        with client, httpx_sse.connect_sse(client, "GET", url, headers=first) as source:
            source.response.raise_for_status()
            for event in source.iter_sse():
                if event.data:  # a ping has none
                    inbox.put(Alert.model_validate_json(event.data))
        inbox.put("the aggregator closed it")
    except (httpx.HTTPError, ValueError) as error:
        inbox.put(str(error))
