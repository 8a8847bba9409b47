"""A run that is deleted over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gradwatch_wire import Bye
from tests.support.aggregator import Serve
from tests.support.problems import problem
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def delete(service: Any, path: str) -> httpx.Response:
    return httpx.delete(service.url + path)


def test_its_attempts_go_on_counting_under_the_same_name(serve: Serve) -> None:
    service = serve()
    first = service.peer().attach()
    first.steps(0, 1.0, 2.0)
    service.shows(first)
    assert problem(delete(service, "/runs/gpt"))[0] == 422
    assert problem(delete(service, "/runs/gpt?confirm=gpt"))[0] == 409
    first.send(Bye(reason="done"))
    first.acked()

    assert delete(service, "/runs/gpt?confirm=gpt").status_code == 204
    wait_until(lambda: service.get("/runs/gpt").status_code == 404)
    assert problem(delete(service, "/runs/gpt?confirm=gpt"))[0] == 404
    again = service.peer().attach()
    again.steps(0, 5.0)
    service.shows(again)

    assert service.json("/runs/gpt/series")["attempt"] == 2
    assert service.stop() == 0
    service.start()
    found = service.json("/runs/gpt/series")
    assert (found["attempt"], found["step"]) == (2, [0])
