"""A listener at the endpoint that sends without end, and goes away: the training process lives."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.waiting import PATIENCE_S
from tests.support.zmtp import PING, message, read_until, shake_hands

pytestmark = pytest.mark.slow

TRAINING = """
import sys
import torch
from torch import nn
import gradwatch

model = nn.Linear(2, 2)
watch = gradwatch.attach(model, run="flooded", endpoint=sys.argv[1])
sys.stdin.readline()  # the flood is over
model(torch.ones(1, 2)).sum().backward()
watch.collect()
watch.close()
print("it goes on")
"""


@contextmanager
def training(server: socket.socket) -> Iterator[subprocess.Popen[str]]:
    """A process that trains, and sends to a port."""
    server.settimeout(PATIENCE_S)
    endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", TRAINING, endpoint]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.exhaustive
def test_a_flood_that_ends_in_the_middle_leaves_training_as_it_is() -> None:
    """ZeroMQ ends the process if it stopped reading from a connection that goes away then."""
    with socket.create_server(("127.0.0.1", 0)) as server, training(server) as process:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            shake_hands(connection, b"ROUTER")
            connection.sendall((message(300) * 3 + PING) * 5_000)
        again, _ = server.accept()
        with again:
            shake_hands(again, b"ROUTER")
            read_until(again, b"PING")  # the client sends one on each connection that it has
            output, errors = process.communicate("\n", timeout=PATIENCE_S)

    assert (process.returncode, output) == (0, "it goes on\n"), errors
