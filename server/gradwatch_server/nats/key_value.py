"""A bucket of keys with values, each with a revision by which writers find out about each other.

It is a stream as the `nats kv` commands know it. Of writes that come at the same moment and expect
the same revision the first one counts, as `chain` says: so there may be more than one for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from nats import errors as library
from nats.aio.client import Client
from nats.js import api

from gradwatch_server.nats.appending import NewMessage, append
from gradwatch_server.nats.chain import GET_S, last_of, purge, sequence_of
from gradwatch_server.nats.connection import CALL_S, Connection
from gradwatch_server.nats.errors import UnreachableError, require_connected
from gradwatch_server.nats.message import Message
from gradwatch_server.nats.shape import ensure_stream
from gradwatch_server.nats.stream import LastSequenceError
from gradwatch_server.nats.subscription import Subscription

_OPERATION: Final = "KV-Operation"
_DELETED: Final = ("DEL", "PURGE")

_REVISION: Final = "Gradwatch-Revision"

MAX_HISTORY: Final = 64
"""Writes to a key that are kept at most: as a rule all but the last one are purged at once."""

DUPLICATES_S: Final = 120.0
"""How long the servers know a message by its id; with a TTL no longer than that."""


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A key as it was last written.

    Args:
        key: The key.
        value: Its value; None if it was deleted.
        revision: Sequence of the write: greater than that of any earlier one in the bucket.
    """

    key: str
    value: bytes | None
    revision: int


class KeyValue:
    """One bucket. All methods are for any thread, and wait for the answer.

    All of them raise `UnreachableError` if none comes, a write then may have been done or not; and
    `RefusedError` if JetStream refuses for a reason of its own.
    """

    def __init__(
        self,
        connection: Connection,
        bucket: str,
        replicas: int = 1,
        ttl_s: float | None = None,
        timeout_s: float = CALL_S,
        try_s: float | None = None,
    ) -> None:
        """Create the bucket unless it is there.

        Args:
            connection: How it is reached.
            bucket: Its name: letters, digits, `-` and `_`.
            replicas: How many servers keep it, 1 to 5.
            ttl_s: Age in seconds at which a key goes by itself, or later if somebody asked for a
                longer one; None if it stays.
            timeout_s: How long a call waits for its answer, retries included.
            try_s: After how long a write is tried again, None for as `append` does it.

        Raises:
            NATSError: If there is one of another shape.
        """
        self._connection = connection
        self._bucket = bucket
        self._stream = f"KV_{bucket}"
        self._timeout_s = timeout_s
        self._try_s = try_s
        window_s = DUPLICATES_S if ttl_s is None else min(ttl_s, DUPLICATES_S)
        config = api.StreamConfig(
            name=self._stream,
            subjects=[f"$KV.{bucket}.>"],
            num_replicas=replicas,
            max_age=ttl_s,
            duplicate_window=window_s,
            max_msgs_per_subject=MAX_HISTORY,
            discard=api.DiscardPolicy.OLD,
            storage=api.StorageType.FILE,
            retention=api.RetentionPolicy.LIMITS,
            allow_rollup_hdrs=True,
            deny_delete=False,
        )
        what = f"the bucket {bucket}"
        connection.call(lambda client: ensure_stream(client, config), what, max(timeout_s, CALL_S))

    def create(self, key: str, value: bytes) -> int | None:
        """Write a key that is not there; return its revision, None if it is there."""
        last = self._last(key)
        if last is not None and last.value is not None:
            return None
        return self._write(key, value, 0 if last is None else last.revision)

    def update(self, key: str, value: bytes, revision: int) -> int | None:
        """Write a key that has a revision; return the new one, None if it has another or went."""
        return self._write(key, value, revision)

    def update_all(self, writes: Mapping[str, tuple[bytes, int]]) -> dict[str, int | None]:
        """Write keys side by side, each as `update` does; return what that returns of each.

        Args:
            writes: The value of each key, and the revision that it has, 0 if it is not there.
        """
        return self._write_all(writes)

    def delete(self, key: str, revision: int) -> bool:
        """Delete a key that has a revision; return whether it had it."""
        return self._write(key, None, revision) is not None

    def get(self, key: str) -> KeyEntry | None:
        """Return a key as the bucket's leader has it, None if it is not there."""
        last = self._last(key)
        return last if last is not None and last.value is not None else None

    def entries(self) -> dict[str, KeyEntry]:
        """Return all keys; each is as it was at some moment of the call."""

        async def read(client: Client) -> list[KeyEntry | None]:
            require_connected(client)
            info = await client.jetstream(timeout=GET_S).stream_info(
                self._stream, self._subject(">")
            )
            subjects = info.state.subjects or {}
            return await asyncio.gather(*(self._read(client, subject) for subject in subjects))

        found = self._connection.call(read, f"the keys of {self._bucket}", self._timeout_s)
        return {own.key: own for own in found if own is not None and own.value is not None}

    def watch(self, take: Callable[[KeyEntry], None]) -> Subscription:
        """Have *take* called in the connection's thread for each key that was written or deleted.

        It is told by the one who wrote, after the fact, and is no promise: what happens while one
        is cut off is not told, and neither is what a TTL takes away. So who watches also looks at
        `entries` whenever the connection is back, and every now and then.
        """

        def told(message: Message) -> None:
            key = message.subject.removeprefix(self._told_subject(""))
            value = None if message.headers.get(_OPERATION) in _DELETED else message.payload
            take(KeyEntry(key, value, int(message.headers[_REVISION])))

        return self._connection.subscribe(self._told_subject(">"), told)

    def _write(self, key: str, value: bytes | None, after: int) -> int | None:
        return self._write_all({key: (value, after)})[key]

    def _write_all(self, writes: Mapping[str, tuple[bytes | None, int]]) -> dict[str, int | None]:
        async def write(client: Client) -> list[int | None]:
            each = (self._append(client, key, *own) for key, own in writes.items())
            return await asyncio.gather(*each)

        what = f"the key {', '.join(writes)} of {self._bucket}"
        revisions = self._connection.call(write, what, self._timeout_s * 2 + CALL_S)
        written = dict(zip(writes, revisions, strict=True))
        for key, revision in written.items():
            if revision is not None:
                self._tell(key, writes[key][0], revision)
        return written

    async def _append(
        self, client: Client, key: str, value: bytes | None, after: int
    ) -> int | None:
        """Write a key that has a revision; return the new one, None if it has another."""
        headers = _headers_of(value)
        message = NewMessage(self._subject(key), value or b"", uuid4().hex, after, 0, headers)
        try:
            revision = await append(client, self._stream, message, self._timeout_s, self._try_s)
        except LastSequenceError:
            return None
        # What is written stands; what was before it goes, at the latest the next time.
        with suppress(library.Error, OSError):
            async with asyncio.timeout(self._try_s):
                await purge(client, self._stream, message.subject, revision)
        return revision

    def _tell(self, key: str, value: bytes | None, revision: int) -> None:
        """Tell those that watch."""
        told = {**_headers_of(value), _REVISION: str(revision)}
        with suppress(UnreachableError):
            self._connection.publish(self._told_subject(key), value or b"", told)

    def _last(self, key: str) -> KeyEntry | None:
        what = f"the key {key} of {self._bucket}"
        subject = self._subject(key)
        return self._connection.call(lambda own: self._read(own, subject), what, self._timeout_s)

    async def _read(self, client: Client, subject: str) -> KeyEntry | None:
        last = await last_of(client, self._stream, subject)
        if last is None:
            return None
        is_deleted = (last.headers or {}).get(_OPERATION) in _DELETED
        key = subject.removeprefix(self._subject(""))
        return KeyEntry(key, None if is_deleted else last.data or b"", sequence_of(last))

    def _subject(self, key: str) -> str:
        return f"$KV.{self._bucket}.{key}"

    def _told_subject(self, key: str) -> str:
        return f"{self._bucket}.written.{key}"


def _headers_of(value: bytes | None) -> dict[str, str]:
    return {} if value is not None else {_OPERATION: _DELETED[0]}
