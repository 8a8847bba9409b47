"""What goes wrong with NATS, in the project's own errors: those of the library stay in here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from nats import errors as library
from nats.aio.client import Client
from nats.js import errors as jetstream

from gradwatch_server.errors import GradwatchError

WRONG_LAST_SEQUENCE: Final = 10071
"""JetStream's code for an append that expected another last message."""

STORE_FAILED: Final = 10077
"""JetStream's code for a message that could not be kept: a limit was reached, for one."""

_LIMIT: Final = "maximum"
"""What JetStream's own words begin with where that limit was one of the stream."""

_NO_ROOM: Final = {
    10002: "its account has no room left; give the account more",
    10023: "its servers have no room left; give them a disk with more, or a higher max_file_store",
    10047: "less is left than is to be reserved; ask for less, or give its servers a higher "
    "max_file_store or its account more",
}
"""JetStream's codes for what has no room: what is full, and what to do."""

UNREACHABLE: Final = (
    TimeoutError,
    OSError,
    asyncio.CancelledError,
    library.ConnectionClosedError,
    library.ConnectionDrainingError,
    library.ConnectionReconnectingError,
    library.NoServersError,
    library.OutboundBufferLimitError,
    library.StaleConnectionError,
    jetstream.NoStreamResponseError,
    jetstream.ServiceUnavailableError,
)
"""What the library raises if no answer came; and some refusals: ask `is_unreachable` too."""


_REFUSALS: Final = ("authorization", "authentication")

_HUNG_UP: Final = (TimeoutError, ConnectionResetError, BrokenPipeError, library.UnexpectedEOF)
"""How a connection ends after a server said why."""


class NATSError(GradwatchError):
    """NATS did not do what it was asked for."""


class UnreachableError(NATSError):
    """No answer came: cut off, too late, or no quorum.

    What was asked for may have been done nevertheless. The same call may succeed later.
    """


class NoRespondersError(UnreachableError):
    """Nobody listens on the subject of a request."""


class FullError(NATSError):
    """JetStream has no room, and nothing was written; the same call succeeds once there is some.

    Args:
        message: What is full, and what to do.
        is_stream: Whether only the stream has reached its limit, and others take more.
    """

    def __init__(self, message: str, *, is_stream: bool = False) -> None:
        super().__init__(message)
        self.is_stream = is_stream


class RefusedError(NATSError):
    """JetStream answered that it will not.

    Args:
        message: What it said.
        code: JetStream's own code of the error, 0 if it gave none.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise what the library raises as an error of this module; *what* is what was tried.

    Raises:
        UnreachableError: If there was no answer.
        FullError: If JetStream has no room.
        RefusedError: If it refused for another reason.
        NATSError: If the library did for another reason.
    """
    try:
        yield
    except NATSError:
        raise
    except library.NoRespondersError as error:
        msg = f"{what}: nobody answers there"
        raise NoRespondersError(msg) from error
    except jetstream.APIError as error:
        if is_unreachable(error):
            raise UnreachableError(f"{what}: {reason(error)}") from error
        raise _refusal(what, error) from error
    except UNREACHABLE as error:
        raise UnreachableError(f"{what}: {reason(error)}") from error
    except (library.Error, ValueError) as error:
        raise NATSError(f"{what}: {reason(error)}") from error


def require_connected(client: Client) -> None:
    """Let nothing wait for an answer that cannot come.

    Raises:
        ConnectionClosedError: If there is another client by now: the library's error.
        ConnectionReconnectingError: If no server is connected: likewise.
    """
    if client.is_closed:
        raise library.ConnectionClosedError
    if not client.is_connected:
        raise library.ConnectionReconnectingError


def is_unreachable(error: BaseException) -> bool:
    """Tell whether an error of the library says that no answer came, and one may come later.

    None does of a client that was closed: `Connection.call` goes on with the next one.
    """
    if isinstance(error, library.ConnectionClosedError):
        return False
    if isinstance(error, jetstream.ServiceUnavailableError):
        return error.err_code != STORE_FAILED and error.err_code not in _NO_ROOM
    return isinstance(error, UNREACHABLE)


def _refusal(what: str, error: jetstream.APIError) -> NATSError:
    says, code = error.description or "refused", error.err_code or 0
    if code in _NO_ROOM:
        return FullError(f"{what}: JetStream is full: {_NO_ROOM[code]} ({says})")
    if code == STORE_FAILED and _LIMIT in says:
        return FullError(f"{what}: the stream is full ({says})", is_stream=True)
    return RefusedError(f"{what}: {says}", code)


def is_refusal(error: BaseException | None) -> bool:
    """Tell whether a server would not let a client in, or not any longer.

    The library has a class for one of its words only; they are the protocol's, in any language.
    """
    says = str(error).lower() if isinstance(error, library.Error) else ""
    return isinstance(error, library.AuthorizationError) or any(own in says for own in _REFUSALS)


def says_more(error: BaseException, before: BaseException | None) -> bool:
    """Tell whether of two errors of a connection the later one is to be told."""
    return not (is_refusal(before) and isinstance(error, _HUNG_UP))


def reason(error: BaseException) -> str:
    """Say in some words what an error of the library or the system is."""
    if isinstance(error, asyncio.CancelledError):
        return "the connection was closed"
    if is_refusal(error):
        says = str(error).removeprefix("nats: ").strip("'")
        return (
            f"it does not take the user and password, or the token, that it is given ({says}); "
            "give its address with those that it takes, such as nats://USER:PASSWORD@HOST:4222"
        )
    if isinstance(error, jetstream.ServiceUnavailableError | jetstream.NoStreamResponseError):
        return "JetStream does not answer: no quorum, no leader, no room, or not enabled"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    if isinstance(error, library.ConnectionReconnectingError):
        return "no NATS server is connected"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return " ".join(str(error).removeprefix("nats: ").split()) or type(error).__name__
