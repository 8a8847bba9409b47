"""What both screens have: a head that says how fresh they are, a filter, keys."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Input, Static

from gradwatch_server.cli.async_client import AsyncClient
from gradwatch_server.cli.top.freshness import Freshness
from gradwatch_server.core.printable import printable

if TYPE_CHECKING:
    from textual.widget import Widget

    from gradwatch_server.cli.top.app import TopApp

MAX_FILTER: Final = 200

KEYS: Final[tuple[BindingType, ...]] = (
    Binding("slash", "filter", "filter", key_display="/"),
    Binding("escape", "back", "back", key_display="esc"),
    Binding("q", "app.quit", "quit"),
    Binding("ctrl+c", "app.quit", show=False, priority=True),
)
"""The keys of every screen, in the order in which its foot shows them."""


class LiveScreen(Screen[None]):
    """Shows what it reads, as long as it is on top."""

    app: TopApp
    every_s = 1.0  # the shortest time between two looks that nobody asked for
    filter_hint: ClassVar[str]  # what the filter looks in

    def __init__(self) -> None:
        super().__init__()
        self.is_old = False
        self._snapshot: dict[str, Any] | None = None
        self._summary = ""

    def compose(self) -> ComposeResult:
        """Make the parts, from top to bottom."""
        yield Static(id="head")
        yield from self.parts()
        yield Input(id="filter", placeholder=self.filter_hint, max_length=MAX_FILTER)
        yield Footer(show_command_palette=False)

    @abstractmethod
    def parts(self) -> list[Widget]:
        """Return what stands between the head and the keys."""

    @abstractmethod
    async def read(self, client: AsyncClient) -> dict[str, Any]:
        """Ask for what is to be shown; a `GradwatchError` leaves what is there."""

    @abstractmethod
    def draw(self, snapshot: dict[str, Any]) -> str:
        """Show it; return it in a few words, for the head."""

    @property
    def filter_text(self) -> str:
        """What names are to have in them."""
        return self.query_one("#filter", Input).value.strip()

    def show(self, snapshot: dict[str, Any], freshness: Freshness) -> None:
        """Show what was read."""
        self._snapshot = snapshot
        self.is_old = freshness.is_old
        self._summary = self.draw(snapshot)
        if self.focused is None:  # it is, as long as the table has nothing to show
            self.focus_table()
        self.age(freshness)

    def age(self, freshness: Freshness) -> None:
        """Say how fresh it is; what is old is dimmed, and `healthy` is `was healthy` then."""
        if freshness.is_old != self.is_old and self._snapshot is not None:
            self.is_old = freshness.is_old
            self.draw(self._snapshot)
        self.set_class(freshness.is_old, "old")
        style = "bold yellow" if freshness.is_old else "dim"
        self.query_one("#head", Static).update(
            Text.assemble(
                (f"gradwatch {printable(self.app.address)}  ", "bold"),
                (printable(freshness.word()), style),
                printable(f"  {self._summary}"),
            )
        )

    def action_filter(self) -> None:
        """Let the user type a filter."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def action_back(self) -> None:
        """End the filter, or go back to where this was opened."""
        field = self.query_one("#filter", Input)
        if field.display:
            field.value = ""
            field.display = False
            self.focus_table()
        elif len(self.app.screen_stack) > self.app.num_bottom:
            self.app.pop_screen()

    @abstractmethod
    def focus_table(self) -> None:
        """Give the keys back to the table."""

    def on_input_submitted(self) -> None:
        """Keep the filter."""
        self.query_one("#filter", Input).display = bool(self.filter_text)
        self.focus_table()

    def on_input_changed(self) -> None:
        """Look with the filter as it is now."""
        self.app.look()

    def on_screen_resume(self) -> None:
        """Look at once when it is on top again."""
        self.app.look()
