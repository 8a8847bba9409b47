"""What an error of NATS means to the users of a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gradwatch_server.nats.errors import NATSError
from gradwatch_server.nats.stream import FullError, LastSequenceError, MissingError
from gradwatch_server.storage.store import StorageError, StorageFault


@contextmanager
def storage_errors() -> Iterator[None]:
    """Raise each error of NATS inside as a `StorageError` with the same words."""
    try:
        yield
    except LastSequenceError as error:
        msg = f"another node has taken over: {error}"
        raise StorageError(msg, StorageFault.GONE) from error
    except FullError as error:
        raise StorageError(str(error), StorageFault.FULL) from error
    except MissingError as error:
        raise StorageError(str(error), StorageFault.DAMAGED) from error
    except NATSError as error:
        raise StorageError(str(error), StorageFault.FAILED) from error
