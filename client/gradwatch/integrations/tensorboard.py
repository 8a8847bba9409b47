"""TensorBoard: mirrors a run's alerts and key series into event files.

Typical use::

    from gradwatch.integrations.tensorboard import TensorBoardMirror

    writer = SummaryWriter("logs")
    with TensorBoardMirror(writer) as mirror:
        with gradwatch.attach(model, optimizer, on_alert=mirror) as watch:
            mirror.follow(watch)
            ...
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gradwatch.integrations._mirror import Mirror, title_of


class Writer(Protocol):
    """What `SummaryWriter` of `torch.utils.tensorboard` and of `tensorboardX` have in common."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Add a number."""

    def add_text(self, tag: str, text_string: str, global_step: int) -> object:
        """Add a text, Markdown."""

    def flush(self) -> object:
        """Write what was added."""


class TensorBoardMirror(Mirror):
    """Mirrors one run into event files; make it on the rank that writes them.

    Series are scalars at gradwatch's steps. Alerts and the address of the run's page are
    texts.

    Args:
        writer: A `SummaryWriter`; it is used from another thread, which it allows.
        every_s: How often series are read, seconds.
        url: Where TensorBoard shows them, for a link from gradwatch's run. None: no link, since
            event files do not say.

    Raises:
        ValueError: If `every_s` is not above 0.
    """

    def __init__(self, writer: Writer, *, every_s: float = 10.0, url: str | None = None) -> None:
        super().__init__(_Tracker(writer, url), every_s=every_s)


class _Tracker:
    name = "TensorBoard"

    def __init__(self, writer: Writer, url: str | None) -> None:
        self._writer = writer
        self._url = url

    def url(self) -> str | None:
        return self._url

    def link(self, run: str, url: str) -> None:
        self._writer.add_text("gradwatch/run", f"{run}: {url}", 0)

    def log(self, steps: Mapping[int, Mapping[str, float]]) -> None:
        for step, values in steps.items():
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def alert(self, alert: Mapping[str, Any]) -> None:
        text = f"**{title_of(alert)}**: {alert['message']}"
        self._writer.add_text("gradwatch/alerts", text, alert["last_step"])
        self._writer.flush()

    def flush(self) -> None:
        self._writer.flush()
