"""What is fixed when a cluster is created."""

from __future__ import annotations

from itertools import count
from typing import Final

import pytest

from gradwatch_server.cluster.ownership.creation import PARTITIONS, create_or_read
from gradwatch_server.errors import GradwatchError
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.key_value import KeyValue

_NUMBERS: Final = count(1)


@pytest.fixture
def config(nats_connection: Connection) -> KeyValue:
    return KeyValue(nats_connection, f"creation-{next(_NUMBERS)}", 1)


def test_the_first_node_fixes_what_all_others_read(config: KeyValue) -> None:
    first = create_or_read(config)

    assert first.partitions == PARTITIONS
    assert create_or_read(config) == create_or_read(config, PARTITIONS) == first


def test_a_cluster_keeps_the_number_of_partitions_it_was_created_with(config: KeyValue) -> None:
    first = create_or_read(config, 8)

    assert first.partitions == 8
    assert create_or_read(config) == first
    with pytest.raises(GradwatchError, match="was created with 8, which stays so, got 9") as caught:
        create_or_read(config, 9)
    assert "\n" not in str(caught.value)
