"""SIGHUP: the rules are read anew from the settings file; the old ones stay if they are wrong."""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final

from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.errors import GradwatchError
from gradwatch_server.settings import Settings

logger = logging.getLogger(__name__)

SIGHUP: Final = getattr(signal, "SIGHUP", None)
"""None on a system that has none."""


class RulesReload:
    """Waits for SIGHUP in a thread: a signal handler can neither read a file nor log."""

    def __init__(self, settings: Settings, load: Callable[[], Settings]) -> None:
        """Keep what a reload is compared with.

        Args:
            settings: Those that the service runs with.
            load: Reads them anew; raises `GradwatchError` if that is not possible.
        """
        self._settings = settings
        self._load = load
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()  # whose `put` a signal may call

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Note each SIGHUP, which otherwise would end the process."""
        if SIGHUP is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(SIGHUP, lambda *_: self._asked.put(True))
        try:
            yield
        finally:
            signal.signal(SIGHUP, before)

    @contextlib.contextmanager
    def handing_to(self, set_rules: Callable[[Rules], None]) -> Iterator[None]:
        """Hand the rules over at each SIGHUP, also one that was noted before."""
        thread = threading.Thread(
            target=self._run, args=(set_rules,), name="gradwatch-reload", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            self._asked.put(False)
            thread.join()

    def _run(self, set_rules: Callable[[Rules], None]) -> None:
        while self._asked.get():
            self._reload(set_rules)

    def _reload(self, set_rules: Callable[[Rules], None]) -> None:
        try:
            settings = self._load()
        except GradwatchError as error:
            logger.error("SIGHUP: the rules stay as they are: %s", error)
            return
        if changed := self._changed(settings):
            logger.warning("SIGHUP: only rules are taken over; restart for %s", ", ".join(changed))
        set_rules(settings.rules)

    def _changed(self, settings: Settings) -> list[str]:
        """Return the settings that would need a restart."""
        return [
            name
            for name in Settings.model_fields
            if name != "rules" and getattr(settings, name) != getattr(self._settings, name)
        ]
