"""The live view: follows the stream, and reads anew what the screen on top shows."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from textual.app import App
from textual.binding import BindingType

from gradwatch_server.cli.async_client import AsyncClient, connected
from gradwatch_server.cli.top.freshness import Freshness
from gradwatch_server.cli.top.run_screen import RunScreen
from gradwatch_server.cli.top.runs_screen import RunsScreen
from gradwatch_server.cli.top.screen import LiveScreen
from gradwatch_server.core.printable import printable
from gradwatch_server.errors import GradwatchError

IDLE_S: Final = 5.0
"""The longest that it waits for something to move: that a rank went silent comes with no tick."""


class TopApp(App[None]):
    """Made for one aggregator.

    Args:
        url: Where it answers.
        run: The run to open, None to begin with the list.

    Attributes:
        fault: What ended it, None if it was a key.
    """

    CSS_PATH = "top.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []

    num_bottom: Final = 2
    """Screens that are never closed: textual's own, and the list of runs."""

    def __init__(self, url: str, run: str | None = None) -> None:
        super().__init__()
        self.address = url.partition("//")[2].rstrip("/")
        self._url = url
        self._run = run
        self._freshness = Freshness()
        self._client: AsyncClient | None = None
        self.fault: Exception | None = None
        self._asked = asyncio.Event()  # by a key: at once
        self._moved = asyncio.Event()  # on the other side: soon

    async def on_mount(self) -> None:
        """Begin."""
        await self.push_screen(RunsScreen())
        if self._run is not None:
            await self.push_screen(RunScreen(self._run))
        self.set_interval(1.0, self._age)
        self.run_worker(self._live())

    def look(self) -> None:
        """Read anew what is shown, at once."""
        self._asked.set()
        self._moved.set()

    def acknowledge(self, alert: str, by: str) -> None:
        """Say that somebody knows of an alert."""
        self.run_worker(self._acknowledge(alert, by))

    def tell(self, text: str, *, is_error: bool = False) -> None:
        """Show a line for some seconds."""
        self.notify(printable(text), severity="error" if is_error else "information", markup=False)

    async def _live(self) -> None:
        try:
            async with connected(self._url) as self._client, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow(self._client))
                tasks.create_task(self._keep_fresh(self._client))
        except Exception as error:  # noqa: BLE001 - textual would show all local variables
            self.fault = error
            self.exit()

    async def _follow(self, client: AsyncClient) -> None:
        async for heard in client.follow():
            if self._freshness.heard(heard):
                self.tell("the aggregator was started anew; what is shown is fresh again")
            self._moved.set()

    async def _keep_fresh(self, client: AsyncClient) -> None:
        while True:
            self._asked.clear()
            self._moved.clear()
            is_read = await self._look(client)
            every_s = self.screen.every_s if isinstance(self.screen, LiveScreen) else 0.0
            if not await _happens(self._asked, every_s) and is_read:
                await _happens(self._moved, IDLE_S)

    async def _look(self, client: AsyncClient) -> bool:
        """Show what is there now; return whether it could be read."""
        screen = self._live_screen()
        if screen is None:
            return True
        try:
            snapshot = await screen.read(client)
        except GradwatchError as error:
            self._freshness.failed(error)
            self._age()
            return False
        self._freshness.looked()
        if self.is_running and screen.is_current:
            screen.show(snapshot, self._freshness)
        return True

    async def _acknowledge(self, alert: str, by: str) -> None:
        if self._client is None:
            return
        try:
            await self._client.post(f"/alerts/{alert}/ack", {"by": by, "comment": ""})
        except GradwatchError as error:
            self.tell(str(error), is_error=True)
        else:
            self.tell(f"{alert} is acknowledged by {by}")
        self.look()

    def _age(self) -> None:
        if (screen := self._live_screen()) is not None:
            screen.age(self._freshness)

    def _live_screen(self) -> LiveScreen | None:
        """Return the screen if it can be drawn on: when the view ends it loses its parts first."""
        screen = self.screen if self.is_running else None
        return screen if isinstance(screen, LiveScreen) and screen.is_mounted else None


async def _happens(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event at most so long; return whether it happened."""
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
