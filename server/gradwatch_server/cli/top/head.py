"""The first line: how old what is shown is. An old `healthy` is the worst thing to show."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.text import Text
from textual.widgets import Static

from gradwatch_server.core.printable import printable


class Head(Static):
    """Told of each look.

    Args:
        address: Host and port of the aggregator.

    Attributes:
        is_old: Whether what is shown may be otherwise by now.
    """

    def __init__(self, address: str) -> None:
        super().__init__(id="head")
        self._address = address
        self._since = ""
        self._word = "asking"
        self.is_old = False

    def looked(self) -> None:
        """Note that the aggregator answered just now."""
        now = f"{datetime.now(UTC):%H:%M:%S} UTC"
        self._since = f" since {now}"
        self._word = f"live · {now}"
        self.is_old = False

    def failed(self, why: str) -> None:
        """Note that it did not, or that it answered with an error."""
        self._word = f"stale{self._since}: {why}"
        self.is_old = True

    def tell(self, summary: str) -> None:
        """Say all of it, and in a few words what is shown."""
        word = (printable(self._word), "bold yellow" if self.is_old else "dim")
        parts = (f"gradwatch {printable(self._address)}  ", "bold"), word, f"  {summary}"
        self.update(Text.assemble(*parts))
