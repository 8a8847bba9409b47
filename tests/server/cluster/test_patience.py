"""What a node waits for when it starts, and what it does not wait for."""

from __future__ import annotations

import logging

import pytest

from gradwatch_server.cluster import patience
from gradwatch_server.cluster.patience import patiently
from gradwatch_server.errors import GradwatchError
from gradwatch_server.nats.errors import RefusedError, UnreachableError
from gradwatch_server.nats.stream import MissingError
from gradwatch_server.storage.store import StorageError, StorageFault


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PAUSE_S", 0.01)


@pytest.mark.parametrize(
    "error",
    [
        UnreachableError("no answer in time"),
        MissingError("entry 3 is missing"),
        StorageError("the ledger failed: connection refused"),
        StorageError("the ledger is busy", StorageFault.BUSY),
    ],
)
def test_what_may_pass_is_waited_for(
    error: GradwatchError, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [error] * 3

    def make() -> str:
        if errors:
            raise errors.pop()
        return "made"

    with caplog.at_level(logging.WARNING):
        assert patiently(make) == "made"
    (line,) = caplog.messages
    assert str(error) in line


@pytest.mark.parametrize(
    "error",
    [
        RefusedError("insufficient resources"),
        StorageError("the ledger is of another cluster", StorageFault.UNUSABLE),
        StorageError('FATAL: no pg_hba.conf entry for host "10.0.0.5"'),
        StorageError("the ledger does not let us in", StorageFault.UNUSABLE),
        StorageError('FATAL: database "x" does not exist'),
    ],
)
def test_what_does_not_pass_is_told_at_once(error: GradwatchError) -> None:
    num_calls = 0

    def make() -> None:
        nonlocal num_calls
        num_calls += 1
        raise error

    with pytest.raises(type(error)):
        patiently(make)
    assert num_calls == 1
