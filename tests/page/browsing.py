"""A tab of the browser, which notes what goes wrong in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from tests.support.waiting import PATIENCE_S

WATCH: Final = """
addEventListener("securitypolicyviolation", (event) => {
  console.error("policy", event.effectiveDirective, event.blockedURI);
});
"""


class Tab:
    """The page in a fresh browser profile.

    Args:
        browser: Chromium.
        url: Of the aggregator.
        path: What to open.
        settings: Of the context: `color_scheme`, `viewport` and so on.
    """

    def __init__(self, browser: Any, url: str, path: str, **settings: Any) -> None:
        defaults = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"}
        self._context = browser.new_context(**defaults | settings)
        self._context.set_default_timeout(1000 * PATIENCE_S * 2 / 3)
        self._context.add_init_script(WATCH)
        self.url = url
        self.faults: list[str] = []
        self.allowed: tuple[str, ...] = ()
        self.page = self._context.new_page()
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self._check_origin)
        self.page.goto(url + path)

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type}: {message.text}")

    def _check_origin(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.faults.append(f"a request to elsewhere: {request.url}")

    def allow(self, *texts: str) -> None:
        """Let faults with these texts in them pass: the test makes them."""
        self.allowed += texts

    def until_live(self) -> Tab:
        """Wait until what is shown is fresh."""
        self.page.locator("body[data-state=live], body[data-state=ended]").wait_for()
        return self

    def text(self, selector: str) -> str:
        found: str = self.page.locator(selector).inner_text()
        return found

    def evaluate(self, script: str, argument: Any = None) -> Any:
        """Run a function in the page."""
        return self.page.evaluate(script, argument)

    def module(self, name: str, body: str, argument: Any = None) -> Any:
        """Run the body of a function with a module of the page as `m` and the argument as `a`."""
        return self.evaluate(
            """async ([name, argument]) => {
              const base = document.querySelector("meta[name=gradwatch-static]").content;
              const m = await import(`${base}/${name}.js`);
              return (({ m, a }) => { BODY })({ m, a: argument });
            }""".replace("BODY", body),
            [name, argument],
        )

    def close(self) -> list[str]:
        """Close it, and return what went wrong."""
        self._context.close()
        return [fault for fault in self.faults if not any(text in fault for text in self.allowed)]


OpenTab: TypeAlias = Callable[..., Tab]
"""Type of the fixture `tab`: `tab(path, color_scheme="dark")`."""
