"""The live view: all runs, or one of them in their place, read anew every second."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from gradwatch_server.cli.async_client import AsyncClient, connected
from gradwatch_server.cli.top.run_list import RunList
from gradwatch_server.cli.top.run_view import RunScreen
from gradwatch_server.core.printable import printable
from gradwatch_server.errors import GradwatchError

EVERY_S: Final = 1.0
"""Time between two looks."""

LOOK_S: Final = 15.0
"""The longest that one look may take."""

MAX_FILTER: Final = 200


class Head(Static):
    """Told of each look."""

    def __init__(self, address: str) -> None:
        super().__init__(id="head")
        self._address = address
        self._since = ""
        self._word = "asking"
        self.is_old = False

    def looked(self) -> None:
        now = f"{datetime.now(UTC):%H:%M:%S} UTC"
        self._since = f" since {now}"
        self._word = f"live · {now}"
        self.is_old = False

    def failed(self, reason: str) -> None:
        """Note that it did not, or that it answered with an error."""
        self._word = f"stale{self._since}: {reason}"
        self.is_old = True

    def tell(self, summary: str) -> None:
        """Say all of it, and in a few words what is shown."""
        word = (printable(self._word), "bold yellow" if self.is_old else "dim")
        parts = (f"gradwatch {printable(self._address)}  ", "bold"), word, f"  {summary}"
        self.update(Text.assemble(*parts))


class TopApp(App[None]):
    """Made for one aggregator.

    Args:
        run: The run to open, None to begin with the list.

    Attributes:
        fault: What ended it, None if it was a key.
    """

    CSS_PATH = "top.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("escape", "back", "back", key_display="esc"),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, url: str, run: str | None = None) -> None:
        super().__init__()
        self._url = url
        self._asked = asyncio.Event()
        self._head = Head(url.partition("//")[2].rstrip("/"))
        self._list, self._run = RunList(), RunScreen()
        self._filter = Input(id="filter", max_length=MAX_FILTER)
        self._list_filter = ""
        self._view: RunList | RunScreen = self._list
        if run is not None:
            self._run.open(run)
            self._view = self._run
        self.fault: Exception | None = None

    def compose(self) -> ComposeResult:
        yield from (self._head, self._list, self._run, self._filter)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._show(self._view)
        self.run_worker(self._live())

    async def _live(self) -> None:
        try:
            async with connected(self._url) as client:
                while True:
                    self._asked.clear()
                    await self._look(client)
                    await _happens(self._asked, EVERY_S)
        except Exception as error:  # noqa: BLE001 - textual would show all local variables
            self.fault = error
            self.exit()

    async def _look(self, client: AsyncClient) -> None:
        """Read what is shown; where that fails, what is there is old."""
        view = self._view
        try:
            async with asyncio.timeout(LOOK_S):
                await view.read(client, self._filter.value.strip())
        except GradwatchError as error:
            self._head.failed(str(error))
        except TimeoutError:
            self._head.failed(f"no answer in {LOOK_S:.0f} s")
        else:
            self._head.looked()
        if self.is_running and view is self._view:
            self._head.tell(view.draw(is_old=self._head.is_old))
            self.screen.set_class(self._head.is_old, "old")
            if self.focused is None:  # as long as the list has nothing to show
                view.focus()

    def _show(self, view: RunList | RunScreen, text: str = "") -> None:
        self._view = view
        self._list.display, self._run.display = view is self._list, view is self._run
        self._filter.placeholder = view.filter_hint
        self._filter.value = text
        self._filter.display = bool(text)
        view.focus()
        self._asked.set()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.row_key.value is not None:
            self._list_filter = self._filter.value
            self._run.open(event.row_key.value)
            self._show(self._run)

    def action_filter(self) -> None:
        self._filter.display = True
        self._filter.focus()

    async def action_back(self) -> None:
        """End the filter, or go back to the list."""
        if self._filter.display:
            self._show(self._view)
        elif self._view is self._run:
            self._show(self._list, self._list_filter)

    def on_input_changed(self) -> None:
        self._asked.set()

    def on_input_submitted(self) -> None:
        self._filter.display = bool(self._filter.value.strip())
        self._view.focus()


async def _happens(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for an event at most so long."""
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return
