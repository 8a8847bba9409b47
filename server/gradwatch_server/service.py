"""The aggregator as a process: start-up, main loop, shutdown."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gradwatch_server.addresses import split_address
from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.app import ApiParts, make_app
from gradwatch_server.api.connection_limits import ConnectionLimits
from gradwatch_server.api.security.access import AccessPolicy, SecurityMiddleware
from gradwatch_server.api.security.hosts import Hosts
from gradwatch_server.api.tls import check_tls
from gradwatch_server.budgets import BudgetUse
from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.engine.engine import Engine
from gradwatch_server.errors import GradwatchError
from gradwatch_server.http_server import (
    HttpServer,
    ServerStop,
    bind,
    http_config,
    http_url,
    page_url,
    quiet_signals,
)
from gradwatch_server.ingest.socket import Ingest
from gradwatch_server.keys import read_keys
from gradwatch_server.log_limits import LogLimits
from gradwatch_server.notify.alert_lookup import AlertLookup
from gradwatch_server.notify.notifications import Notifications, make_notifiers
from gradwatch_server.open_files import raise_limit, warn_of_limit
from gradwatch_server.settings import Settings, exposure_warnings, retention_of
from gradwatch_server.standby import wait_for_lease
from gradwatch_server.stores import make_lease, open_delivery_log, open_leased_store, open_store
from gradwatch_wire.limits import BOOT_ID_BYTES

if TYPE_CHECKING:
    from gradwatch_server.stores import Lease

SIGHUP: Final = getattr(signal, "SIGHUP", None)
"""None on a system that has none."""


class RulesReload:
    """Waits for SIGHUP in a thread: a signal handler can neither read a file nor log."""

    def __init__(self, settings: Settings, load: Callable[[], Settings]) -> None:
        """Keep what a reload is compared with.

        Args:
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


logger = logging.getLogger(__name__)

GROWN_BYTES: Final = 64 << 20
"""Growth of the process since the last full collection of garbage that leads to the next."""

GROWN_SHARE: Final = 0.25
"""Or by so much of its size, if that is more."""

NEVER: Final = 1 << 30


def resident_bytes() -> int:
    """Return the memory that this process has; where the system does not say, the most it had."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak << 10
    return pages * os.sysconf("SC_PAGE_SIZE")


class GarbageCollector:
    """Looks at all objects when memory has grown."""

    def __init__(self, resident: Callable[[], int] = resident_bytes) -> None:
        self._resident = resident
        self._size = 0  # when all objects were looked at last

    @contextlib.contextmanager
    def pausing_briefly(self) -> Iterator[None]:
        """Collect all objects only where `collect_if_due` does, and never those of now."""
        before = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(before[0], before[1], NEVER)
        self._size = self._resident()
        try:
            yield
        finally:
            gc.set_threshold(*before)
            gc.unfreeze()

    def collect_if_due(self) -> None:
        """Look at all objects if memory has grown; to be called about once a second."""
        size = self._resident()
        if size - self._size >= max(GROWN_BYTES, GROWN_SHARE * self._size):
            gc.collect()
            self._size = self._resident()


def serve(
    settings: Settings,
    announce: Callable[[str, str | None], None],
    reload: Callable[[], Settings] | None = None,
) -> None:
    """Run until SIGTERM or SIGINT.

    Args:
        announce: Gets the HTTP and the ingest address once bound, None while it waits for another
            node.
        reload: Reads the settings anew, of which a SIGHUP takes over the rules.

    Raises:
        GradwatchError: If a port is taken, the data directory cannot be used, or the engine died.
    """
    reloading = RulesReload(settings, reload or (lambda: settings))
    raise_limit()
    is_displaced = True
    with reloading.listening():
        while is_displaced:
            with contextlib.ExitStack() as stack:
                is_displaced = _Aggregator(settings, stack).run(announce, reloading)


class _Aggregator:
    """All parts of an aggregator, put together; *stack* ends them."""

    def __init__(self, settings: Settings, stack: contextlib.ExitStack) -> None:
        self._settings, self._stack = settings, stack
        # First what may be refused before anything is opened.
        self._keys = None if settings.keys_dir is None else read_keys(settings.keys_dir)
        check_tls(settings.http_tls_cert, settings.http_tls_key)
        self._notifiers = make_notifiers(settings.notify)
        self._budget_use = BudgetUse(settings.budgets)
        self._log_limits = LogLimits(self._budget_use)
        stack.enter_context(self._log_limits.guarding())
        budgets = settings.budgets
        warn_of_limit(budgets.ingest_connections, budgets.http_connections)
        self._limits = ConnectionLimits(self._budget_use)
        self._clock, self._boot_id = Clock(), os.urandom(BOOT_ID_BYTES)
        self._lease: Lease | None = None

    def _open(self, announce: Callable[[str, str | None], None]) -> bool:
        """Open store and ports; return False if told to stop while another node has the store."""
        settings, stack = self._settings, self._stack
        if settings.store is None:
            self._store = open_store(
                settings.data,
                self._clock,
                allow_network_fs=settings.allow_network_fs,
                boot=self._boot_id.hex(),
            )
            stack.callback(self._store.close)
        self._http_socket = stack.enter_context(bind(settings.http))
        self._http_url = http_url(settings, self._http_socket)
        page = page_url(settings, self._http_socket)
        if settings.store is not None:
            url, boot = settings.store.get_secret_value(), self._boot_id.hex()
            lease = self._lease = make_lease(url, boot, page or "")
            stack.callback(lease.release)

            def on_wait() -> None:
                announce(self._http_url, None)

            if not wait_for_lease(lease, settings, self._limits, self._http_socket, on_wait):
                return False
            self._store = open_leased_store(lease, self._clock)
            stack.callback(self._store.close)
        self._ingest = Ingest(settings.ingest, self._keys, self._budget_use)
        stack.callback(self._ingest.close)
        self._alert_stream = AlertStream(self._store.alert_events)
        self._notifications = stack.enter_context(self._make_notifications(page))
        self._ending = ServerStop(self._alert_stream)
        self._engine = self._make_engine()
        return True

    @contextlib.contextmanager
    def _make_notifications(self, page_url: str | None) -> Iterator[Notifications]:
        """Open the delivery log where there are targets."""
        if not self._notifiers:
            yield Notifications()
            return
        settings, events = self._settings, self._store.alert_events
        with contextlib.closing(open_delivery_log(settings.data, self._lease)) as log:
            yield Notifications.to(settings.notify, self._notifiers, events, log, page_url)

    def _make_engine(self) -> Engine:
        settings = self._settings
        return Engine(
            self._store,
            self._ingest,
            settings.rules,
            clock=self._clock,
            window_steps=settings.window_steps,
            session_timeout_s=settings.session_timeout_s,
            on_alerts=self._wake,
            on_failure=self._ending.fail,
            retention=retention_of(settings),
            budget_use=self._budget_use,
            boot_id=self._boot_id,
            http_url=self._http_url,
        )

    def _wake(self) -> None:
        self._alert_stream.wake()
        self._notifications.wake()

    def run(self, announce: Callable[[str, str | None], None], reloading: RulesReload) -> bool:
        """Run until told to stop; return True if another node has taken over instead.

        Raises:
            GradwatchError: If the engine died.
        """
        if not self._open(announce):
            return False
        stack, engine, collector = self._stack, self._engine, GarbageCollector()

        async def every_second() -> None:
            self._log_limits.report()
            collector.collect_if_due()

        config = http_config(self._settings, self._secured_app(), self._limits, every_second)
        server = HttpServer(config, self._alert_stream, self._limits)
        self._ending.server = server
        stack.enter_context(quiet_signals(server))
        stack.enter_context(collector.pausing_briefly())
        engine.start()
        stack.callback(engine.stop)
        self._notifications.start(AlertLookup(engine.find_view))
        stack.callback(self._notifications.stop)
        stack.enter_context(reloading.handing_to(engine.set_rules))
        for warning in exposure_warnings(self._settings):
            logger.warning("%s", warning)
        announce(self._http_url, self._ingest.endpoint)
        server.run(sockets=[self._http_socket])
        if self._lease is not None and self._lease.is_lost:
            return True
        self._ending.check("the engine failed; the log above says why")
        return False

    def _secured_app(self) -> SecurityMiddleware:
        settings, keys = self._settings, self._keys
        parts = ApiParts(
            connection_limits=self._limits,
            notifications=self._notifications,
            data=settings.data if settings.store is None else None,
        )
        app = make_app(self._engine, self._store.alert_events, self._alert_stream, parts)
        policy = AccessPolicy(
            Hosts(split_address(settings.http)[0], settings.http_hosts),
            keys.tokens if keys is not None else None,
            parts.stream_tokens,
        )
        return SecurityMiddleware(app, policy)
