"""The aggregator as a process: start-up, main loop, shutdown."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from gradwatch_server.addresses import is_wildcard, split_address
from gradwatch_server.api.acceptor import Acceptor
from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.app import ApiParts, make_app
from gradwatch_server.api.connection_limits import ConnectionLimits
from gradwatch_server.api.connections import Connection
from gradwatch_server.api.metrics.push import MetricsPush
from gradwatch_server.api.security.access import AccessPolicy
from gradwatch_server.api.security.hosts import Hosts
from gradwatch_server.api.security.middleware import SecurityMiddleware
from gradwatch_server.api.security.stream_tokens import StreamTokens
from gradwatch_server.api.tls import check_tls
from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.clock import Clock
from gradwatch_server.engine.engine import Engine
from gradwatch_server.errors import GradwatchError
from gradwatch_server.garbage import GarbageCollector
from gradwatch_server.ingest.socket import Ingest
from gradwatch_server.keys import Tokens, read_keys
from gradwatch_server.log_limits import LogLimits
from gradwatch_server.notify.notifications import Notifications, make_notifiers
from gradwatch_server.notify.notifiers.base import Notifier
from gradwatch_server.open_files import raise_limit
from gradwatch_server.reload import RulesReload
from gradwatch_server.settings import Settings, exposure_warnings
from gradwatch_server.storage.history import History
from gradwatch_server.storage.inspection import Inspection, Library
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_server.storage.sqlite.deliveries import SQLiteDeliveryLog
from gradwatch_server.storage.sqlite.history import SQLiteHistory
from gradwatch_server.storage.sqlite.inspection import inspect, library
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_server.storage.store import Store

logger = logging.getLogger(__name__)

LATER_S = 5
"""uvicorn ends what is idle so much later than the limits do, which count it."""

GRACE_S = 1
"""How long open requests may take to end at shutdown; the streams end by themselves."""


class _Server(uvicorn.Server):
    """Ends the alert streams first: uvicorn waits for open responses before anything else."""

    def __init__(
        self,
        config: uvicorn.Config,
        alert_stream: AlertStream,
        limits: ConnectionLimits,
        log_limits: LogLimits,
        collector: GarbageCollector,
    ) -> None:
        super().__init__(config)
        self._acceptors: list[Acceptor] = []
        self._collector = collector
        self._alert_stream = alert_stream
        self._limits = limits
        self._log_limits = log_limits

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])  # it would accept all that wait at once
        self._acceptors = [
            Acceptor(listening, self._limits, self._connection, self.config.ssl)
            for listening in sockets or ()
        ]
        self._limits.start(self._look)

    def _connection(self) -> Connection:
        made = self.config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn does
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return cast("Connection", made)

    def _look(self) -> None:
        self._log_limits.tell()
        self._collector.look()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._alert_stream.close()
        super().handle_exit(sig, frame)


def read_store(directory: Path) -> History:
    """Open what a data directory holds for reading, also beside the aggregator that serves it.

    Raises:
        StorageError: If there is nothing, or it cannot be read.
    """
    return SQLiteHistory(directory)


def inspect_store(directory: Path) -> Inspection:
    """Look at a data directory from outside, also beside the aggregator that serves it.

    Raises:
        OSError: If it may not be looked at.
    """
    return inspect(directory)


def store_library() -> Library:
    """Return the version of what stores the data, and what is known of it."""
    return library()


def open_store(directory: Path) -> Store:
    """Open or create the store of a data directory for writing, as the aggregator does.

    Raises:
        StorageError: If it cannot be used, or an aggregator has it.
    """
    return SQLiteStore.open(directory, Clock())


def serve(
    settings: Settings,
    announce: Callable[[str, str], None],
    reload: Callable[[], Settings] | None = None,
) -> None:
    """Run until SIGTERM or SIGINT.

    Args:
        settings: What is set.
        announce: Gets the HTTP and the ingest address once bound.
        reload: Reads the settings anew, of which a SIGHUP takes over the rules.

    Raises:
        GradwatchError: If a port is taken, the data directory cannot be used, or the engine died.
    """
    keys = read_keys(settings.keys_dir) if settings.keys_dir is not None else None
    check_tls(settings.http_tls_cert, settings.http_tls_key)
    push = _metrics_push(settings)
    notifiers = make_notifiers(settings.notify)
    reloading = RulesReload(settings, reload or (lambda: settings))
    raise_limit()
    with reloading.listening(), contextlib.ExitStack() as stack:
        clock = Clock()
        budget_use = BudgetUse(settings.budgets)
        log_limits = LogLimits(budget_use)
        stack.enter_context(log_limits.guarding())
        limits = ConnectionLimits(budget_use)
        store = SQLiteStore.open(settings.data, clock, allow_network_fs=settings.allow_network_fs)
        stack.callback(store.close)
        http_socket = stack.enter_context(_bind(settings.http))
        ingest = Ingest(settings.ingest, keys, budget_use)
        stack.callback(ingest.close)

        alert_stream = AlertStream(store.alert_events)
        notifications = stack.enter_context(
            _notifications(settings, notifiers, store, _page_url(settings, http_socket))
        )
        failed: list[bool] = []

        def fail() -> None:
            failed.append(True)
            server.should_exit = True
            alert_stream.close()

        def wake() -> None:
            alert_stream.wake()
            notifications.wake()

        engine = Engine(
            store,
            ingest,
            settings.rules,
            clock=clock,
            window_steps=settings.window_steps,
            session_timeout_s=settings.session_timeout_s,
            on_alerts=wake,
            on_failure=fail,
            retention=RetentionPolicy(
                **{f.name: getattr(settings, f.name) for f in dataclasses.fields(RetentionPolicy)}
            ),
            budget_use=budget_use,
            http_url=_http_url(settings, http_socket),
        )
        stream_tokens = StreamTokens()
        app = make_app(
            engine,
            store.alert_events,
            alert_stream,
            ApiParts(
                stream_tokens=stream_tokens,
                connection_limits=limits,
                notifications=notifications,
                data=settings.data,
                push=push,
                open_history=lambda: read_store(settings.data),
            ),
        )
        policy = _access_policy(settings, keys.tokens if keys is not None else None, stream_tokens)
        config = _http_config(settings, SecurityMiddleware(app, policy), limits)
        collector = GarbageCollector()
        server = _Server(config, alert_stream, limits, log_limits, collector)
        stack.enter_context(_quiet_signals(server))
        stack.enter_context(collector.pausing_briefly())
        engine.start()
        stack.callback(engine.stop)
        notifications.start(engine.published.alert)
        stack.callback(notifications.stop)
        stack.enter_context(reloading.handing_to(engine.set_rules))
        for warning in exposure_warnings(settings):
            logger.warning("%s", warning)
        announce(_http_url(settings, http_socket), ingest.endpoint)
        server.run(sockets=[http_socket])
        if failed:
            msg = "the engine failed; the log above says why"
            raise GradwatchError(msg)


def _metrics_push(settings: Settings) -> MetricsPush | None:
    """Return what sends metrics to a collector, None where none is named.

    Raises:
        GradwatchError: If the libraries for it are missing, or what it asks for is malformed.
    """
    if settings.otlp_endpoint is None:
        return None
    try:
        from gradwatch_server.api.metrics.otlp import OtlpPush  # noqa: PLC0415 - an extra's
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("opentelemetry", "requests"):
            raise
        msg = "otlp_endpoint needs OpenTelemetry's libraries; run: pip install 'gradwatch[otlp]'"
        raise GradwatchError(msg) from error
    return OtlpPush(settings.otlp_endpoint, settings.otlp_interval_s, settings.data)


@contextlib.contextmanager
def _notifications(
    settings: Settings, notifiers: Mapping[str, Notifier], store: Store, page_url: str | None
) -> Iterator[Notifications]:
    """Open the delivery log where there are targets."""
    if not notifiers:
        yield Notifications()
        return
    with contextlib.closing(SQLiteDeliveryLog(settings.data)) as log:
        yield Notifications.to(settings.notify, notifiers, store.alert_events, log, page_url)


def _access_policy(
    settings: Settings, tokens: Tokens | None, stream_tokens: StreamTokens
) -> AccessPolicy:
    hosts = Hosts(split_address(settings.http)[0], settings.http_hosts)
    return AccessPolicy(hosts, tokens, stream_tokens)


def _http_config(settings: Settings, app: ASGIApp, limits: ConnectionLimits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=Connection.under(limits),
        ws="none",
        timeout_keep_alive=math.ceil(limits.idle_s) + LATER_S,
        ssl_certfile=settings.http_tls_cert,
        ssl_keyfile=settings.http_tls_key,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
    )


def _http_url(settings: Settings, bound: socket.socket) -> str:
    """Return where the API answers: port 0 has become a number."""
    host, port = bound.getsockname()[:2]
    scheme = "http" if settings.http_tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _page_url(settings: Settings, bound: socket.socket) -> str | None:
    """Return where people open the page, None if nobody said so and others cannot know."""
    if settings.public_url is not None:
        return settings.public_url.rstrip("/")
    return None if is_wildcard(bound.getsockname()[0]) else _http_url(settings, bound)


def _bind(address: str) -> socket.socket:
    host, port = split_address(address)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, UnicodeError) as error:  # UnicodeError: no host name can look like that
        why = getattr(error, "strerror", None) or error
        msg = f"cannot bind the HTTP address {address}: {why}; give a free one with --http"
        raise GradwatchError(msg) from error


@contextlib.contextmanager
def _quiet_signals(server: uvicorn.Server) -> Iterator[None]:
    """Make the signals harmless that uvicorn raises again once it has stopped."""

    def note(_signal: int, _frame: FrameType | None) -> None:
        """Stop: this one may have come before the server listens to signals."""
        server.should_exit = True

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
