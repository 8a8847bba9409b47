"""The sections of docs/ that benchmarks write their tables into."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page, between two lines that stay.

    Args:
        page: Name of the page in docs/.
        begin: The line before it.
        end: The line after it.
    """

    page: str
    begin: str
    end: str = "<!-- To here. -->"

    @classmethod
    def of(cls, page: str, benchmark: str) -> Section:
        return cls(page, f"<!-- From here on written by scripts/bench {benchmark} --write. -->")

    def read(self) -> str:
        return (DOCS / self.page).read_text("utf-8")

    def write(self, text: str) -> None:
        """Write the page with another text here.

        Raises:
            ValueError: If the page has no such section.
        """
        (DOCS / self.page).write_text(self.filled(self.read(), text), "utf-8")

    def filled(self, page: str, text: str) -> str:
        """Return a page with another text here.

        Raises:
            ValueError: If it has no such section.
        """
        head, begin, rest = page.partition(self.begin)
        _, end, tail = rest.partition(self.end)
        if not (begin and end):
            msg = f"{self.page} needs a line {self.begin} and after it a line {self.end}"
            raise ValueError(msg)
        return f"{head}{begin}\n\n{text}\n\n{end}{tail}"
