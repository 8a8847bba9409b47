"""What an error of NATS means to the users of a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gradwatch_server.nats.errors import FullError, NATSError
from gradwatch_server.nats.stream import LastSequenceError, MissingError
from gradwatch_server.storage.store import StorageError, StorageFault

_ADVICE: Final = "; restart the nodes with a higher cluster_log_max_bytes"


@contextmanager
def storage_errors() -> Iterator[None]:
    """Raise each error of NATS inside as a `StorageError` with the same words."""
    try:
        yield
    except LastSequenceError as error:
        msg = f"another node has taken over: {error}"
        raise StorageError(msg, StorageFault.GONE) from error
    except FullError as error:
        advice = _ADVICE if error.is_stream else ""
        raise StorageError(f"{error}{advice}", StorageFault.FULL) from error
    except MissingError as error:
        raise StorageError(str(error), StorageFault.DAMAGED) from error
    except NATSError as error:
        raise StorageError(str(error), StorageFault.FAILED) from error
