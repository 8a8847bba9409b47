"""A server of any app, for what asks others."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
import uvicorn
from starlette.types import ASGIApp

from tests.support.waiting import PATIENCE_S, wait_until

NewServer = Callable[[ASGIApp], int]


@pytest.fixture
def serve() -> Iterator[NewServer]:
    """Serve an app on a free port: `serve(app)` returns it."""
    with contextlib.ExitStack() as stack:

        def begin(app: ASGIApp) -> int:
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            config = uvicorn.Config(
                app, http="h11", lifespan="off", interface="asgi3", log_config=None
            )
            server = uvicorn.Server(config)
            thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
            thread.start()
            wait_until(lambda: server.started, "the server")

            def end() -> None:
                server.should_exit = True
                thread.join(PATIENCE_S)

            stack.callback(end)
            return int(listening.getsockname()[1])

        yield begin
