"""A small aggregator in a thread, which keeps what it gets in lists for a test to look at."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest
import torch
import zmq
from torch import nn

import gradwatch
import gradwatch_wire as wire
from gradwatch_server.core.sequence import SequenceResult, SequenceTracker
from tests.support.waiting import wait_until

R = TypeVar("R")


class Sink(threading.Thread):
    """A ROUTER with the real sequence tracker, and lists in place of the log.

    It answers as `gradwatch serve` does. Attributes are read from the test's thread while it runs.
    """

    def __init__(self, endpoint: str = "tcp://127.0.0.1:*") -> None:
        super().__init__(name="test-aggregator", daemon=True)
        self.boot_id = os.urandom(16)
        self.stored: list[Any] = []  # envelopes; their records are of any kind
        self.hellos: dict[bytes, wire.Hello] = {}  # by session
        self.num_hellos = 0
        self.beats: list[wire.Beat] = []
        self.lost: list[tuple[int, int]] = []
        self.refusal: str | None = None
        self.welcome: dict[str, Any] = {}  # what WELCOME says besides
        self.every = 1
        self._tracker = SequenceTracker({})
        self._peers: dict[bytes, bytes] = {}  # session -> peer
        self._outbox: deque[wire.Record] = deque()
        self._watches: list[gradwatch.Watch] = []
        self._stopping = threading.Event()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        self._socket.bind(endpoint)
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def run(self) -> None:
        while not self._stopping.is_set():
            if self._socket.poll(5):
                peer, message = self._socket.recv_multipart()
                self._take(peer, wire.decode(message))
            while self._outbox:
                record = self._outbox.popleft()
                for session, peer in self._peers.items():
                    self._reply(peer, session, record)
        self._socket.close(linger=0)
        self._context.term()

    def _take(self, peer: bytes, envelope: wire.Envelope) -> None:
        session, record = envelope.session, envelope.record
        self._peers[session] = peer
        if isinstance(record, wire.Hello):
            self.hellos[session] = record
            self.num_hellos += 1
            if self.refusal is not None:
                self._reply(peer, session, wire.Refuse(reason=self.refusal))
                return
            self._tracker.open(session)
            acked = self._tracker.accepted(session)
            self._reply(
                peer, session, wire.Welcome(boot_id=self.boot_id, acked=acked, **self.welcome)
            )
            return
        rewind = False
        if isinstance(record, wire.Beat):
            self.beats.append(record)
        else:
            check = self._tracker.check(session, envelope.seq, envelope.low)
            if check.gap is not None:
                self.lost.append(check.gap)
            if check.outcome is SequenceResult.ACCEPT:
                self.stored.append(envelope)
            rewind = check.outcome is SequenceResult.REWIND
        acked = self._tracker.accepted(session)
        ack = wire.Ack(boot_id=self.boot_id, acked=acked, rewind=rewind, every=self.every)
        self._reply(peer, session, ack)

    def _reply(self, peer: bytes, session: bytes, record: wire.Record) -> None:
        envelope = wire.Envelope(session=session, record=record)
        self._socket.send_multipart([peer, wire.encode(envelope)], zmq.NOBLOCK)

    def send(self, record: wire.Record) -> None:
        """Say something to every client."""
        self._outbox.append(record)

    def of(self, kind: type[R]) -> list[R]:
        """Return the stored records of one class, in order."""
        return [e.record for e in list(self.stored) if isinstance(e.record, kind)]

    def stats(self, count: int) -> list[wire.Stats]:
        """Wait for so many STATS and return them; fail if there are more or fewer."""
        wait_until(lambda: len(self.of(wire.Stats)) >= count, f"{count} STATS")
        found = self.of(wire.Stats)
        assert len(found) == count, f"{len(found)} STATS instead of {count}"
        return found

    def of_stats(self) -> list[wire.Stats]:
        """Return the STATS that are there; after a watch has closed these are all."""
        return self.of(wire.Stats)

    def layers(self, stats: wire.Stats, column: str = "l2") -> dict[str, float]:
        """Return a column by the names of the manifest that the STATS refer to."""
        manifests = {m.manifest_id: m for m in self.of(wire.Manifest)}
        names = manifests[stats.manifest_id].names
        return dict(zip(names, stats.columns[column].unpack(), strict=True))

    def attach(self, *arguments: Any, **settings: Any) -> gradwatch.Watch:
        """Attach to this aggregator; `stop` closes the watch."""
        settings = {"run": "test", "endpoint": self.endpoint} | settings
        watch = gradwatch.attach(*arguments, **settings)
        assert isinstance(watch, gradwatch.Watch)
        self._watches.append(watch)
        return watch

    def attach_sgd(
        self, model: nn.Module, lr: float = 0.1, **settings: Any
    ) -> tuple[gradwatch.Watch, torch.optim.SGD]:
        """Attach a model and plain SGD over all of its parameters."""
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        return self.attach(model, optimizer, **settings), optimizer

    def collected(self, watch: gradwatch.Watch, **given: Any) -> wire.Stats:
        watch.collect(**given)
        return self.stats(1)[0]

    def stop(self) -> None:
        for watch in self._watches:
            watch.close()
        self._stopping.set()
        self.join(10)


NewAggregator: TypeAlias = Callable[..., Sink]
"""Type of the fixture `new_aggregator`: another one, on an endpoint if one is given."""


def numbers_are_those_of_the_training(aggregator: Sink, directory: Path) -> None:
    """Compare what two ranks sent with what they wrote themselves, watched and without us."""

    def said(which: str, rank: int) -> dict[str, Any]:
        path = directory / f"{which}-{rank}.json"
        wait_until(path.exists, str(path))
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return found

    for session, hello in aggregator.hellos.items():
        own = said("watched", hello.rank)
        mine = [e.record for e in aggregator.stored if e.session == session]
        sent = [record for record in mine if hasattr(record, "scalars")]
        norms = [sum(v**2 for v in aggregator.layers(s).values()) ** 0.5 for s in sent]
        losses = [sum(pair) / 2 for pair in zip(*[iter(own["losses"])] * 2, strict=True)]

        assert [stats.step for stats in sent] == [0, 1, 2, 3]
        assert norms == pytest.approx(own["norms"], rel=1e-4)
        assert [stats.scalars["loss"] for stats in sent] == pytest.approx(losses, rel=1e-6)
        assert {stats.labels["reduction"] for stats in sent} == {"mean"}
        assert own["weights"] == said("plain", hello.rank)["weights"]


def placed(*placements: Any) -> Any:
    """A DTensor on a mesh of this rank alone."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    mesh = init_device_mesh("cpu", (1,) * len(placements))
    return DTensor.from_local(torch.ones(2), mesh, placements)
