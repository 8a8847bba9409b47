"""Weights & Biases: mirrors a run's alerts and key series into a run of W&B.

Typical use::

    from gradwatch.integrations.wandb import WandbMirror

    run = wandb.init(project="gpt2")
    with WandbMirror(run) as mirror, gradwatch.attach(model, optimizer, on_alert=mirror) as watch:
        mirror.follow(watch)
        ...
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from gradwatch.integrations._mirror import Mirror, title_of

if TYPE_CHECKING:
    import wandb

STEP: Final = "gradwatch/step"
"""The axis of the series: gradwatch's steps, which need not be those that W&B counts."""

_LEVELS: Final = {"info": "INFO", "warning": "WARN", "critical": "ERROR"}


class WandbMirror(Mirror):
    """Mirrors one run into a run of W&B; make it on the rank that has that.

    Alerts become W&B's own, by which it notifies people as they have set it: of one rule once a
    minute. The address of the run's page is put into the config, as `gradwatch_url`, its name as
    `gradwatch_run`; gradwatch's run gets a link to that of W&B, unless it is offline. The newest
    step goes into the row that the training logs next: W&B counts rows, and rows of others would be
    in the way of it.

    Args:
        run: What `wandb.init` returned.
        every_s: How often series are read, seconds.

    Raises:
        ValueError: If `every_s` is not above 0.
    """

    def __init__(self, run: wandb.Run, *, every_s: float = 10.0) -> None:
        super().__init__(_Tracker(run), every_s=every_s)


class _Tracker:
    name = "W&B"

    def __init__(self, run: wandb.Run) -> None:
        self._run = run

    def url(self) -> str | None:
        if self._run.offline or self._run.disabled:  # it would warn of that
            return None
        return (self._run.url or "").partition("?")[0] or None  # older ones put API keys after it

    def link(self, run: str, url: str) -> None:
        own = {"gradwatch_run": run, "gradwatch_url": url}
        self._run.config.update(own, allow_val_change=True)  # type: ignore[no-untyped-call]
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("gradwatch/*", step_metric=STEP)

    def log(self, steps: Mapping[int, Mapping[str, float]]) -> None:
        last = max(steps)
        self._run.log({STEP: last, **steps[last]}, commit=False)

    def alert(self, alert: Mapping[str, Any]) -> None:
        level = "INFO" if alert["state"] == "resolved" else _LEVELS[alert["severity"]]
        self._run.alert(title_of(alert), alert["message"], level=level)

    def flush(self) -> None:
        """W&B writes by itself."""
