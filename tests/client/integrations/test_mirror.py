"""A mirror does no harm to the training, whatever its function does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import nn

import gradwatch
from gradwatch.integrations import mirror as own
from gradwatch.integrations.mirror import Log, Mirror
from tests.support.aggregator import Aggregator
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aggregator]:
    made = Aggregator(tmp_path_factory.mktemp("mirror") / "data")
    made.start()
    yield made
    made.close()


def train(endpoint: str, run: str, log: Log, **settings: Any) -> Mirror:
    """Take three steps with a mirror, and return it, not closed."""
    model = nn.Linear(2, 2)
    watch = gradwatch.attach(model, run=run, endpoint=endpoint)
    mirror = Mirror(watch, log, **settings)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        watch.collect()
    return mirror


def test_all_steps_arrive_in_order_before_close_returns(service: Aggregator) -> None:
    calls: list[tuple[int, dict[str, float]]] = []
    mirror = train(service.ingest, "ordered", lambda numbers, step: calls.append((step, numbers)))
    mirror.close()
    mirror.close()

    assert [step for step, _ in calls] == [0, 1, 2]
    assert all(numbers["gradwatch/gradient_norm"] > 0 for _, numbers in calls)


@pytest.mark.parametrize("error", [ConnectionError, SystemExit])
def test_a_function_that_raises_gets_every_step_and_is_told_of_once(
    service: Aggregator, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    calls: list[int] = []

    def log(_numbers: dict[str, float], step: int) -> None:
        calls.append(step)
        raise error(step)

    train(service.ingest, error.__name__, log).close()

    assert calls == [0, 1, 2]
    lines = [line for line in caplog.messages if "mirror" in line]
    assert lines == [f"gradwatch: mirror: {error.__name__}(0); training goes on (told once)"]


def test_a_function_that_hangs_holds_nobody_up(
    service: Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "CLOSE_S", 0.05)
    hanging, going_on = threading.Event(), threading.Event()

    def log(_numbers: dict[str, float], _step: int) -> None:
        hanging.set()
        going_on.wait()

    mirror = train(service.ingest, "hanging", log, every_s=0.01)
    wait_until(hanging.is_set, "it hangs")
    mirror.close()

    assert mirror._thread.is_alive()
    going_on.set()
    wait_until(lambda: not mirror._thread.is_alive(), "the thread ends")


def test_a_run_without_an_aggregator_is_mirrored_in_vain(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []
    train("tcp://127.0.0.1:9", "alone", lambda _, step: calls.append(step)).close()

    assert calls == []
    assert "mirror" not in caplog.text


def test_the_watch_says_that_an_exception_ended_the_training(service: Aggregator) -> None:
    mirrors = [train(service.ingest, run, lambda _, _step: None) for run in ("left", "closed")]
    with pytest.raises(ZeroDivisionError), closing(mirrors[1]), mirrors[0]:
        1 / 0  # noqa: B018 - it raises

    wait_until(lambda: service.health("left")["phase"] == "failed", "it is known")
    wait_until(lambda: service.health("closed")["phase"] == "failed", "of both")


@pytest.mark.parametrize("every_s", [0, -1.0, float("nan")])
def test_a_pause_that_is_none_is_refused(every_s: float) -> None:
    with pytest.raises(ValueError, match="every_s: above 0, got"):
        Mirror(gradwatch.NullWatch(), lambda _, _step: None, every_s=every_s)
