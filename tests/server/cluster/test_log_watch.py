"""A stream that goes, or is changed, while nodes run is seen."""

from __future__ import annotations

from itertools import count

import pytest
from nats.aio.client import Client
from nats.js import api

from gradwatch_server.cluster import log_watch
from gradwatch_server.cluster.log_watch import LogWatch
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.jetstream import JetStreamStream
from tests.support.waiting import wait_until

_NUMBERS = count(1)


def test_a_stream_that_is_changed_and_gone_is_told(
    nats_connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_watch, "LOOK_S", 0.02)
    name = f"WATCHED_{next(_NUMBERS)}"
    stream = JetStreamStream(nats_connection, name)
    stream.ensure([f"{name}.*"], replicas=1, max_bytes=None)
    config = api.StreamConfig(name=name, subjects=[f"{name}.*"], discard=api.DiscardPolicy.OLD)
    watch = LogWatch(stream.check)
    watch.look()
    assert watch.fault is None
    watch.start()

    nats_connection.call(lambda client: client.jetstream().update_stream(config), "change")
    wait_until(lambda: "discard = old, and new is" in (watch.fault or ""), "the change")

    async def delete(client: Client) -> None:
        await client.jetstream().delete_stream(name)

    nats_connection.call(delete, "delete")
    wait_until(lambda: "is not there any more" in (watch.fault or ""), "that it is gone")
    stream.ensure([f"{name}.*"], replicas=1, max_bytes=None)
    wait_until(lambda: watch.fault is None, "that it is back")
    watch.stop()
