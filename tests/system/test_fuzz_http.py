"""Thousands of requests that fit the API's own description, nearly fit it, or fit nothing.

`GRADWATCH_FUZZ_REQUESTS=10000 scripts/test tests/system/test_fuzz_http.py` sends that many.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.support.aggregator import Aggregator
from tests.support.peer import Peer
from tests.support.waiting import PATIENCE_S

REQUESTS = int(os.environ.get("GRADWATCH_FUZZ_REQUESTS", "400"))
MAX_GROWTH_BYTES = 64 << 20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + REQUESTS // 10)]

some = settings(
    max_examples=REQUESTS // 2,
    database=None,
    derandomize=REQUESTS <= 400,  # the normal suite is to be the same each time
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def asker(service: Aggregator) -> Iterator[Asker]:
    asker = Asker(service.url)
    yield asker
    asker.close()


@pytest.fixture
def service(aggregator: Aggregator) -> Iterator[Aggregator]:
    """An aggregator with a run that is worth asking for; it must not fail, or grow."""
    aggregator.start()
    _train(aggregator.peer(run="fuzzed"))
    process = psutil.Process(aggregator.process.pid)
    before = process.memory_info().rss
    yield aggregator
    assert aggregator.get("/readyz").is_success
    assert process.memory_info().rss - before < MAX_GROWTH_BYTES
    assert aggregator.stop() == 0
    assert "Traceback" not in aggregator.errors


def _train(peer: Peer) -> None:
    peer.attach(["a", "слой\n<b>"])
    for step in range(20):
        peer.stats(step, [float("nan") if step % 5 == 0 else 1e3, 1.0])
    peer.acked()


class Asker:
    """Sends requests and counts the answers; a stream is let go once it begins."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.statuses: Counter[int] = Counter()
        self._session = requests.Session()
        self._session.trust_env = False

    def close(self) -> None:
        self._session.close()

    def ask(self, **request: Any) -> None:
        try:
            response = self._session.request(**request, stream=True, timeout=PATIENCE_S)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            return  # the library will not send it
        with response:
            self.statuses[response.status_code] += 1
            assert response.status_code < 500, (request, response.text)
            if "json" in response.headers.get("content-type", "") and request["method"] != "HEAD":
                response.json()
            if response.status_code != 400:  # which is uvicorn's own, to what is no HTTP
                assert response.headers["x-content-type-options"] == "nosniff"


def test_requests_made_from_the_description_never_fail(asker: Asker) -> None:
    """Valid ones and ones with something wrong in them, of every operation."""
    schema = schemathesis.openapi.from_url(f"{asker.url}/openapi.json")
    results: Any = schema.get_all_operations()
    operations = [each.ok() for each in results]
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    cases = [
        operation.as_strategy(generation_mode=mode)
        for operation, mode in itertools.product(operations, modes)
        if mode is GenerationMode.POSITIVE or _has_parameters(operation)
    ]

    @some
    @given(st.one_of(cases), st.booleans())
    def check(case: Any, is_known: bool) -> None:
        if is_known and case.path_parameters and "run" in case.path_parameters:
            case.path_parameters["run"] = "fuzzed"
        asker.ask(**case.as_transport_kwargs(base_url=asker.url))

    check()
    assert {200, 404, 422} <= set(asker.statuses)


def _has_parameters(operation: Any) -> bool:
    return bool(len(operation.path_parameters) or len(operation.query) or len(operation.headers))


PATHS = st.one_of(
    st.text(max_size=60),
    st.lists(
        st.sampled_from(["runs", "fuzzed", "health", "alerts", "stream", "..", "", "%00", "é"]),
        max_size=6,
    ).map("/".join),
)
METHODS = st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"])
HEADERS = st.dictionaries(
    st.sampled_from(["Last-Event-ID", "Accept", "Authorization", "Origin", "Range", "Cookie"]),
    st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=40),
)


def test_requests_made_of_anything_never_fail(asker: Asker) -> None:
    @some
    @given(METHODS, PATHS, st.text(max_size=30), HEADERS, st.binary(max_size=300))
    def check(method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> None:
        encoded = {name: value.encode("latin-1") for name, value in headers.items()}
        asker.ask(
            method=method,
            url=f"{asker.url}/{path}",
            params=query.encode(),
            headers=encoded,
            data=body,
        )

    check()
    assert len(asker.statuses) > 2
