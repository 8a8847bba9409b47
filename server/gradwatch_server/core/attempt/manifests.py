"""The manifests of one attempt: what they take in memory, and which go where there is no room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gradwatch_server.core.frames.layout import Layout
from gradwatch_server.core.session import DeclaredManifest, Session


class Manifests:
    """Counts what the sessions of an attempt declared. Ranks of one layout share it: it is once.

    Attributes:
        num_bytes: What all of them take.
        most_bytes: The most that those of one session took together, so far.
        num_dropped: Budget to the manifests that went because it left no room, since the start.
    """

    def __init__(self) -> None:
        self.num_bytes = self.most_bytes = 0
        self.num_dropped: Counter[str] = Counter()
        self._uses: Counter[Layout] = Counter()

    def take_over(self, session: Session) -> None:
        """Count what a session declared before it is seen here."""
        for manifest in session.manifests.values():
            self._add(manifest)
        self.most_bytes = max(self.most_bytes, session.manifests_bytes)

    def declare(
        self,
        session: Session,
        number: int,
        manifest: DeclaredManifest,
        most_bytes: int,
        budget: str,
    ) -> None:
        """Note what a session declared; its oldest go until they take no more than *most_bytes*."""
        replaced = session.declare(number, manifest)
        if replaced is not None:
            self._remove(replaced)
        self._add(manifest)
        self.keep_to(session, most_bytes, budget, least=1)
        self.most_bytes = max(self.most_bytes, session.manifests_bytes)

    def keep_to(self, session: Session, most_bytes: int, budget: str, *, least: int = 0) -> None:
        """Drop the oldest manifests of a session until they take no more than this.

        Args:
            session: Whose.
            most_bytes: How much.
            budget: What is told to have left no room.
            least: So many of the newest stay.
        """
        dropped = session.drop_manifests(most_bytes, least)
        for manifest in dropped:
            self._remove(manifest)
        if dropped:
            self.num_dropped[budget] += len(dropped)

    def clear(self, sessions: Iterable[Session]) -> None:
        """Let all of them go: nothing comes any more that needs them."""
        for session in sessions:
            session.clear_manifests()
        self._uses.clear()
        self.num_bytes = self.most_bytes = 0

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
