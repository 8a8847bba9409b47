"""Steps that are sent, and curves and pictures that come back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tests.support.aggregator import Aggregator
from tests.support.peer import Peer
from tests.support.records import stats_of


def send(service: Aggregator, peer: Peer, first: int, *norms: float) -> None:
    """Send a step for each norm of the first layer, and wait until it is shown."""
    for step, norm in enumerate(norms, first):
        peer.send(stats_of(step, (norm, 2.0), loss=float(step), lr=0.1, step_time_s=0.5))
    peer.acked()
    service.shows(peer)


def tensors(body: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    metadata = header.pop("__metadata__")
    kinds = {"F64": "<f8", "F32": "<f4", "U32": "<u4", "U16": "<u2"}
    found = {}
    for name, own in header.items():
        begin, end = own["data_offsets"]
        data = body[8 + length + begin : 8 + length + end]
        found[name] = np.frombuffer(data, kinds[own["dtype"]]).reshape(own["shape"])
    return found, metadata


def rounded(cells: list[Any]) -> list[Any]:
    """Return magnitudes, which codes keep within 0.15 %, in two digits; words as they are."""
    return [cell if isinstance(cell, str) else round(cell, 1) for cell in cells]
