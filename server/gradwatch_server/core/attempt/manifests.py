"""The manifests of one attempt: what they take in memory, and which go where there is no room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gradwatch_server.core.frames.layout import Layout
from gradwatch_server.core.session import DeclaredManifest, RankSession


class DeclaredManifests:
    """Counts what the sessions of an attempt declared. Ranks of one layout share it: it is once.

    Attributes:
        num_dropped: Budget to the manifests that went because it left no room, since the start.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self.num_dropped: Counter[str] = Counter()
        self._uses: Counter[Layout] = Counter()

    def adopt(self, session: RankSession) -> None:
        """Count what a session declared before it is seen here."""
        for manifest in session.manifests.values():
            self._add(manifest)

    def declare(self, session: RankSession, number: int, manifest: DeclaredManifest) -> None:
        replaced = session.declare(number, manifest)
        if replaced is not None:
            self._remove(replaced)
        self._add(manifest)

    def drop_oldest(self, sessions: Iterable[RankSession]) -> bool:
        """Drop the oldest manifest of the session that takes most; return False if none may go.

        The newest manifest of each session stays: it is needed for what comes.
        """
        droppable = [session for session in sessions if len(session.manifests) > 1]
        if not droppable:
            return False
        session = max(droppable, key=lambda session: session.manifests_bytes)
        self._drop(session, next(iter(session.manifests)), "run_bytes")
        return True

    def keep_to(self, session: RankSession, limit: int) -> None:
        """Drop the oldest manifests of a session until they take no more than *limit* bytes."""
        while session.manifests and session.manifests_bytes > limit:
            self._drop(session, next(iter(session.manifests)), "total_bytes")

    def drop_newest(self, session: RankSession) -> None:
        self._drop(session, next(reversed(session.manifests)), "run_bytes")

    def _drop(self, session: RankSession, number: int, budget: str) -> None:
        self._remove(session.pop_manifest(number))
        self.num_dropped[budget] += 1

    def clear(self, sessions: Iterable[RankSession]) -> None:
        """Let all of them go: nothing comes any more that needs them."""
        for session in sessions:
            session.clear_manifests()
        self._uses.clear()
        self.num_bytes = 0

    def _add(self, manifest: DeclaredManifest) -> None:
        if not self._uses[manifest.layout]:
            self.num_bytes += manifest.layout.num_bytes
        self._uses[manifest.layout] += 1
        self.num_bytes += manifest.own_bytes

    def _remove(self, manifest: DeclaredManifest) -> None:
        self._uses[manifest.layout] -= 1
        if not self._uses[manifest.layout]:
            del self._uses[manifest.layout]
            self.num_bytes -= manifest.layout.num_bytes
        self.num_bytes -= manifest.own_bytes
