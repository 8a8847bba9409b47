"""The aggregator as a process: start-up, main loop, shutdown."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping

from gradwatch_server.addresses import split_address
from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.app import ApiParts, make_app
from gradwatch_server.api.connection_limits import ConnectionLimits
from gradwatch_server.api.metrics.push import make_push
from gradwatch_server.api.security.access import AccessPolicy
from gradwatch_server.api.security.hosts import Hosts
from gradwatch_server.api.security.middleware import SecurityMiddleware
from gradwatch_server.api.tls import check_tls
from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.clock import Clock
from gradwatch_server.engine.engine import Engine
from gradwatch_server.errors import GradwatchError
from gradwatch_server.garbage import GarbageCollector
from gradwatch_server.http_server import (
    Ending,
    HttpServer,
    bind,
    http_config,
    http_url,
    page_url,
    quiet_signals,
)
from gradwatch_server.ingest.socket import Ingest
from gradwatch_server.keys import read_keys
from gradwatch_server.log_limits import LogLimits
from gradwatch_server.notify.notifications import Notifications, make_notifiers
from gradwatch_server.notify.notifiers.base import Notifier
from gradwatch_server.open_files import raise_limit
from gradwatch_server.reload import RulesReload
from gradwatch_server.settings import Settings, exposure_warnings, retention_of
from gradwatch_server.storage.store import Store
from gradwatch_server.stores import open_delivery_log, open_store, read_store

logger = logging.getLogger(__name__)


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
    if settings.cluster is not None:
        _serve_node(settings, announce, reload)
        return
    keys = read_keys(settings.keys_dir) if settings.keys_dir is not None else None
    check_tls(settings.http_tls_cert, settings.http_tls_key)
    push = make_push(settings.otlp_endpoint, settings.otlp_interval_s, settings.data)
    notifiers = make_notifiers(settings.notify)
    reloading = RulesReload(settings, reload or (lambda: settings))
    raise_limit()
    with reloading.listening(), contextlib.ExitStack() as stack:
        clock = Clock()
        budget_use = BudgetUse(settings.budgets)
        log_limits = LogLimits(budget_use)
        stack.enter_context(log_limits.guarding())
        limits = ConnectionLimits(budget_use)
        store = open_store(settings.data, clock, allow_network_fs=settings.allow_network_fs)
        stack.callback(store.close)
        http_socket = stack.enter_context(bind(settings.http))
        ingest = Ingest(settings.ingest, keys, budget_use)
        stack.callback(ingest.close)

        alert_stream = AlertStream(store.alert_events)
        notifications = stack.enter_context(
            _notifications(settings, notifiers, store, page_url(settings, http_socket))
        )
        ending = Ending(alert_stream)

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
            on_failure=ending.fail,
            retention=retention_of(settings),
            budget_use=budget_use,
            http_url=http_url(settings, http_socket),
        )
        parts = ApiParts(
            connection_limits=limits,
            notifications=notifications,
            data=settings.data,
            push=push,
            open_history=lambda: read_store(settings.data),
        )
        app = make_app(engine, store.alert_events, alert_stream, parts)
        policy = AccessPolicy(
            Hosts(split_address(settings.http)[0], settings.http_hosts),
            keys.tokens if keys is not None else None,
            parts.stream_tokens,
        )
        config = http_config(settings, SecurityMiddleware(app, policy), limits)
        collector = GarbageCollector()
        server = HttpServer(config, alert_stream, limits, log_limits, collector)
        ending.server = server
        stack.enter_context(quiet_signals(server))
        stack.enter_context(collector.pausing_briefly())
        engine.start()
        stack.callback(engine.stop)
        notifications.start(engine.published.alert)
        stack.callback(notifications.stop)
        stack.enter_context(reloading.handing_to(engine.set_rules))
        for warning in exposure_warnings(settings):
            logger.warning("%s", warning)
        announce(http_url(settings, http_socket), ingest.endpoint)
        server.run(sockets=[http_socket])
        ending.check("the engine failed; the log above says why")


def _serve_node(
    settings: Settings,
    announce: Callable[[str, str], None],
    reload: Callable[[], Settings] | None,
) -> None:
    try:
        from gradwatch_server.cluster.node import serve_node  # noqa: PLC0415 - an extra's
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("alembic", "nats", "psycopg", "sqlalchemy"):
            raise
        msg = "a cluster needs more libraries; run: pip install 'gradwatch[cluster]'"
        raise GradwatchError(msg) from error
    serve_node(settings, announce, reload)


@contextlib.contextmanager
def _notifications(
    settings: Settings, notifiers: Mapping[str, Notifier], store: Store, page_url: str | None
) -> Iterator[Notifications]:
    """Open the delivery log where there are targets."""
    if not notifiers:
        yield Notifications()
        return
    with contextlib.closing(open_delivery_log(settings.data)) as log:
        yield Notifications.to(settings.notify, notifiers, store.alert_events, log, page_url)
