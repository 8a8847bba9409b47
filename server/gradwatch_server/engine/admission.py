"""Admission: which peers may write which run, and which HELLOs open a session."""

from __future__ import annotations

from typing import Final

from gradwatch_server.core.sequence import SequenceTracker
from gradwatch_server.core.state import State
from gradwatch_server.ingest.socket import Ingest, Message
from gradwatch_wire import Hello, Refuse
from gradwatch_wire.health import RUN_NAME_RULE, is_run_name

MAX_HELLO_BYTES: Final = 8_192
"""A session's HELLO stays in memory for good; those of our client take some 300 bytes."""

MAX_SESSIONS: Final = 100_000
MAX_RUNS: Final = 1_000


class Admission:
    """Refuses what may not come in; each refusal is counted and told to the peer."""

    def __init__(self, ingest: Ingest, state: State, tracker: SequenceTracker) -> None:
        self._ingest = ingest
        self._state = state
        self._tracker = tracker

    def may_write(self, message: Message) -> bool:
        """Tell whether who sent a message may write the run it is for; refuse it if not."""
        envelope, client = message.envelope, message.client
        known = self._state.sessions.get(envelope.session)
        hello = known.hello if known is not None else envelope.record
        if client is None or not isinstance(hello, Hello) or client.may_write(hello.run):
            return True
        reason = f"the key of client {client.name!a} may not write run {hello.run[:80]!a}"
        self._refuse(message, "owner", reason)
        return False

    def admits(self, message: Message, hello: Hello) -> bool:
        """Tell whether a HELLO may open a new session; refuse it if not."""
        refusal = self._refusal(hello, len(message.raw))
        if refusal is not None:
            self._refuse(message, *refusal)
        return refusal is None

    def _refuse(self, message: Message, kind: str, reason: str) -> None:
        self._ingest.refuse(kind, reason, message.peer)
        self._ingest.reply(message.peer, message.envelope.session, Refuse(reason=reason))

    def _refusal(self, hello: Hello, num_bytes: int) -> tuple[str, str] | None:
        """Return what kind of HELLO is not taken in, and the reason; None if this one is."""
        if not is_run_name(hello.run):
            return "run name", f"run name {hello.run[:40]!a} is not {RUN_NAME_RULE}"
        if num_bytes > MAX_HELLO_BYTES:
            reason = f"a HELLO of {num_bytes} bytes, at most {MAX_HELLO_BYTES} are read"
            return "hello size", reason
        if hello.run not in self._state.runs and len(self._state.runs) >= MAX_RUNS:
            return "runs", f"the log holds {MAX_RUNS} runs; start with a new data directory"
        if len(self._tracker) >= MAX_SESSIONS:
            reason = f"the log holds {MAX_SESSIONS} sessions; start with a new data directory"
            return "sessions", reason
        return None
