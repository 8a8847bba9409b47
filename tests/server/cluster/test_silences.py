"""Silences that are written while all of them are read: the later write stands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict

import pytest

from gradwatch_server.clock import Clock
from gradwatch_server.cluster.alerts.silences import ClusterSilences
from gradwatch_server.core.alerting.silences import Silence
from gradwatch_server.nats.key_value import KeyEntry, KeyValue
from gradwatch_server.nats.subscription import Subscription


class Bucket(KeyValue):
    """A bucket in memory, to which something may happen while it is being read."""

    def __init__(self) -> None:
        self.contents: dict[str, KeyEntry] = {}
        self.told: Callable[[KeyEntry], None] = lambda _: None
        self.meanwhile: Callable[[], None] = lambda: None

    def watch(self, take: Callable[[KeyEntry], None]) -> Subscription:
        self.told = take
        return None  # type: ignore[return-value] # nobody ends it

    def entries(self) -> dict[str, KeyEntry]:
        found = dict(self.contents)
        self.meanwhile()
        return found


def entry(key: str, revision: int) -> KeyEntry:
    """Return one that is made, for an hour."""
    until_ns = time.time_ns() + 3_600 * 10**9
    silence = Silence(key, "x", "*", "*", until_ns, created_ns=revision, by="me", comment="")
    return KeyEntry(key, json.dumps(asdict(silence)).encode(), revision)


def ended(key: str, revision: int) -> KeyEntry:
    return KeyEntry(key, None, revision)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def silences(bucket: Bucket) -> ClusterSilences:
    return ClusterSilences(bucket, lambda: (), Clock())


def ids(silences: ClusterSilences) -> list[str]:
    return [own.id for own in silences.all]


def test_what_is_written_during_a_read_stands(bucket: Bucket, silences: ClusterSilences) -> None:
    bucket.contents = {"a": entry("a", 1)}
    silences._read()

    def write() -> None:
        bucket.told(ended("a", 2))
        bucket.told(entry("b", 3))

    bucket.meanwhile = write
    silences._read()
    assert ids(silences) == ["b"]


def test_a_read_finds_what_nobody_told(bucket: Bucket, silences: ClusterSilences) -> None:
    bucket.contents = {"a": entry("a", 1)}
    silences._read()
    bucket.contents = {"b": entry("b", 3)}
    silences._read()
    assert ids(silences) == ["b"]


def test_what_is_told_late_undoes_nothing(bucket: Bucket, silences: ClusterSilences) -> None:
    bucket.told(ended("a", 2))
    bucket.told(entry("a", 1))
    assert ids(silences) == []
    silences._read()
    silences._read()
    assert silences._known == {}  # what is over is not kept for ever


def test_what_a_later_version_says_of_one_is_passed_over(
    bucket: Bucket, silences: ClusterSilences
) -> None:
    """It holds nevertheless."""
    one = entry("a", 1)
    plain = json.loads(one.value or b"")
    bucket.told(KeyEntry("a", json.dumps({**plain, "of a later version": [1]}).encode(), 1))
    bucket.told(KeyEntry("b", b'{"id": "b"}', 2))
    assert silences.all == (Silence(**plain),)
