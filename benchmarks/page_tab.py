"""A tab of Chromium that is measured: when its first picture was there, and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

LIMIT_S: Final = 60.0
POLL_MS: Final = 20
SETTLE_MS: Final = 200

FRAMES: Final = """
globalThis.gradwatchFrames = [];
const note = (at) => { gradwatchFrames.push(at); requestAnimationFrame(note); };
requestAnimationFrame(note);
"""
MARKS: Final = """() => Object.fromEntries(
  performance.getEntriesByType("mark").map(({ name, startTime }) => [name, startTime]))"""
NEXT_FRAME: Final = "(after) => gradwatchFrames.find((at) => at > after) ?? null"


@dataclass(frozen=True, slots=True)
class FirstPicture:
    """How a page began, in milliseconds since the navigation.

    Args:
        picture_ms: The frame began that shows layers and steps, and the verdict.
        num_bytes: All that came over the network until all parts of the page were there.
    """

    picture_ms: float
    num_bytes: int


class MeasuredTab:
    """The page in a fresh profile: nothing of it is cached."""

    def __init__(self, context: Any) -> None:
        self._page = context.new_page()
        self._page.add_init_script(FRAMES)
        self._devtools = context.new_cdp_session(self._page)
        self._sizes: dict[str, int] = {}  # by request
        for event, take in (
            ("responseReceived", lambda event: event["response"]["encodedDataLength"]),
            ("dataReceived", lambda event: max(event["encodedDataLength"], 0)),
        ):
            self._devtools.on(f"Network.{event}", self._adding(take))
        self._devtools.on("Network.loadingFinished", self._finished)
        self._devtools.send("Network.enable")

    def _adding(self, size_of: Any) -> Any:
        def add(event: Any) -> None:
            key = event["requestId"]
            self._sizes[key] = self._sizes.get(key, 0) + int(size_of(event))

        return add

    def _finished(self, event: Any) -> None:
        self._sizes[event["requestId"]] = int(event["encodedDataLength"])

    def open(self, url: str) -> FirstPicture:
        """Open an address, and wait until all of it is there."""
        self._page.goto(url)
        marks: dict[str, float] = {}
        self._poll(lambda: marks.update(self._page.evaluate(MARKS)) or len(marks) == 2, "a picture")
        drawn: list[float] = []

        def has_frame() -> bool:
            frame = self._page.evaluate(NEXT_FRAME, max(marks.values()))
            drawn.extend([] if frame is None else [frame])
            return bool(drawn)

        self._poll(has_frame, "the frame of the picture")
        self._page.locator("body[data-state=live], body[data-state=ended]").wait_for()
        self.wait(SETTLE_MS)
        return FirstPicture(drawn[0], self.num_bytes)

    def _poll(self, condition: Any, what: str) -> None:
        for _ in range(round(1000 * LIMIT_S / POLL_MS)):
            if condition():
                return
            self.wait(POLL_MS)
        msg = f"waited {LIMIT_S:g} s for {what}"
        raise TimeoutError(msg)

    def wait(self, milliseconds: float) -> None:
        """Wait, and take what the browser tells meanwhile."""
        self._page.wait_for_timeout(milliseconds)

    @property
    def num_bytes(self) -> int:
        """What came over the network so far, with headers."""
        return sum(self._sizes.values())


@contextmanager
def measured_tab(browser: Any) -> Iterator[MeasuredTab]:
    """Open an empty tab."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(1000 * LIMIT_S)
    try:
        yield MeasuredTab(context)
    finally:
        context.close()
