"""A node as a process: start-up, main loop, shutdown."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.app import ApiParts, make_app
from gradwatch_server.api.connection_limits import ConnectionLimits
from gradwatch_server.api.metrics.snapshot import NodeNumbers
from gradwatch_server.api.security.middleware import SecurityMiddleware
from gradwatch_server.api.ticks import Ticks
from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.clock import Clock
from gradwatch_server.cluster.alerts.ledger_watch import LedgerWatch
from gradwatch_server.cluster.alerts.notifying import PARTITION, ClusterNotifications
from gradwatch_server.cluster.alerts.silences import ClusterSilences
from gradwatch_server.cluster.catalogue.publisher import CataloguePublisher
from gradwatch_server.cluster.catalogue.reader import CatalogueReader
from gradwatch_server.cluster.http.access import access_policy, advertised_url
from gradwatch_server.cluster.http.condition import Condition
from gradwatch_server.cluster.http.front import Front
from gradwatch_server.cluster.http.idle import idle_partitions
from gradwatch_server.cluster.http.listing import Listings
from gradwatch_server.cluster.http.node_numbers import read_numbers
from gradwatch_server.cluster.http.node_view import NodeView
from gradwatch_server.cluster.http.proxy import Proxy
from gradwatch_server.cluster.http.stream_tokens import shared_stream_tokens
from gradwatch_server.cluster.http.ticks import ClusterTicks
from gradwatch_server.cluster.log_watch import LogWatch
from gradwatch_server.cluster.messages.gateway import Gateway
from gradwatch_server.cluster.messages.turns import Turns
from gradwatch_server.cluster.names import Names, host_name
from gradwatch_server.cluster.ownership.clocks import Clocks
from gradwatch_server.cluster.ownership.membership import Membership
from gradwatch_server.cluster.ownership.node_record import NodeRecord
from gradwatch_server.cluster.partitions.host import AnswerPost, Host, answers_to
from gradwatch_server.cluster.partitions.partition import Surroundings, retention_in
from gradwatch_server.cluster.partitions.takeovers import Takeovers
from gradwatch_server.cluster.partitions.workers import Workers, leave
from gradwatch_server.cluster.reach.watch import ReachWatch
from gradwatch_server.cluster.services import Services
from gradwatch_server.cluster.unavailable import tell_storage_errors
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.engine.metrics import Timings
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
from gradwatch_server.log_limits import LogLimits
from gradwatch_server.nats.errors import NATSError
from gradwatch_server.open_files import raise_limit
from gradwatch_server.preparation import prepare
from gradwatch_server.reload import RulesReload
from gradwatch_server.settings import Settings, exposure_warnings
from gradwatch_wire import __version__

logger = logging.getLogger(__name__)


def serve_node(
    settings: Settings,
    announce: Callable[[str, str], None],
    reload: Callable[[], Settings] | None = None,
) -> None:
    """Run a node of a cluster until SIGTERM or SIGINT; as `service.serve`, which see.

    Raises:
        GradwatchError: If a port is taken, NATS or PostgreSQL cannot be used, or the gateway died.
    """
    reloading = RulesReload(settings, reload or (lambda: settings))
    raise_limit()
    for library in ("alembic", "httpx"):
        logging.getLogger(library).setLevel(logging.WARNING)
    with reloading.listening(), contextlib.ExitStack() as stack:
        node = _Node(settings, stack)
        node.run(announce, reloading)
    if node.workers.do_hang:
        leave()


class _Node:
    """All parts of a node, put together; *stack* ends them."""

    def __init__(self, settings: Settings, stack: contextlib.ExitStack) -> None:
        self._settings, self._stack = settings, stack
        self._made = prepare(settings)
        self._id = f"{settings.node or host_name()}-{os.urandom(3).hex()}"
        self._names = Names(settings.cluster_namespace)
        self._budget_use = BudgetUse(settings.budgets)
        self._log_limits = LogLimits(self._budget_use)
        stack.enter_context(self._log_limits.guarding())
        self._limits = ConnectionLimits(self._budget_use)
        self._timings = Timings()
        self._takeovers = Takeovers()
        self._clocks = Clocks(self._id, Clock().now_ns)
        self._services = Services(settings, self._id, self._names)
        stack.callback(self._services.close)
        self._connection, self._storage = self._services.connection, self._services.storage
        self._partitions = self._services.partitions
        self.workers = Workers()
        stack.callback(self.workers.shut_down)
        self._http_socket = stack.enter_context(bind(settings.http))
        self._http_url = http_url(settings, self._http_socket)
        self._advertised = advertised_url(settings, self._http_url)
        self._build()
        self._notifications = ClusterNotifications(
            settings.notify,
            self._made.notifiers,
            self._storage.alert_events,
            self._storage.runs,
            self._storage.open_deliveries,
            page_url(settings, self._http_socket),
            self._notifying_epoch,
            lambda epoch: self._host.note_outranked(PARTITION, epoch),
        )

    def _build(self) -> None:
        settings, services = self._settings, self._services
        self._alert_stream = AlertStream(self._storage.alert_events)
        self._ending = Ending(self._alert_stream)
        self._watch = LedgerWatch(self._storage.alert_events, self._wake)
        self._log_watch = LogWatch(self._storage.check_log)
        self._catalogue = CatalogueReader(self._storage.runs, lambda: self._watch.fault is not None)
        self._host = Host(self._id, self._names, self._connection, settings.rules)
        self._publisher = CataloguePublisher(lambda: self._host.owned)
        self._gateway = Gateway(
            settings.ingest,
            self._partitions,
            self._host,
            self._made.keys,
            self._budget_use,
            self._ending.fail,
        )
        self._stack.callback(self._gateway.stop)
        self._membership = Membership(
            NodeRecord(self._id, __version__, self._advertised, self._gateway.endpoint),
            services.leases(),
            services.owners(),
            self._partitions,
            settings.cluster_lease_s,
            self._host,
            self._clocks,
        )
        self._reach = ReachWatch(
            self._id, self._names, self._connection, lambda: self._membership.live
        )
        self._view = NodeView(
            self._host,
            self._membership.has_lease,
            self._gateway,
            settings.rules,
            self._budget_use,
            self._timings,
            lambda: self._watch.cursor,
            lambda: self._condition.fault,
            self.workers.opening,
        )
        self._condition = Condition(
            self._connection,
            self._membership,
            self._watch,
            self._log_watch,
            self._host,
            self._clocks,
            lambda: (engine.published for engine in self._view.engines()),
        )
        bucket = services.bucket(self._names.silences)
        self._silences = ClusterSilences(bucket, self._view.engines, self._view.clock)
        self._view.silences = self._silences
        ticks = Ticks(lambda: self._view.published.runs, self._view.place)
        self._ticks = ClusterTicks(self._id, self._names.ticks, self._connection, ticks)

    def run(self, announce: Callable[[str, str], None], reloading: RulesReload) -> None:
        """Run until told to stop."""
        stack, collector = self._stack, GarbageCollector()
        front = self._front()
        policy = access_policy(
            self._settings, self._advertised, self._made.keys, self._parts.stream_tokens
        )
        app = SecurityMiddleware(front, policy)

        async def every_second() -> None:
            self._log_limits.tell()
            collector.look()

        config = http_config(self._settings, app, self._limits, every_second)
        server = HttpServer(config, self._alert_stream, self._limits)
        self._ending.server = server
        stack.enter_context(quiet_signals(server))
        stack.enter_context(collector.pausing_briefly())
        self._start()
        stack.enter_context(reloading.handing_to(self._set_rules))
        for warning in exposure_warnings(self._settings):
            logger.warning("%s", warning)
        announce(self._http_url, self._gateway.endpoint)
        server.run(sockets=[self._http_socket])
        self._ending.check("the gateway failed; the log above says why")

    def _start(self) -> None:
        stack = self._stack
        self._host.start(self._surroundings())
        stack.callback(self._host.stop)
        answers = self._names.answers(self._id)
        self._connection.subscribe(answers, answers_to(self._gateway.deliver))
        self._connection.subscribe(self._names.alerts, lambda _: self._watch.wake())
        self._connection.on_change(lambda _: self._membership.look_again())
        self._notifications.begin()
        stack.callback(self._notifications.stop)
        self._silences.start()
        stack.callback(self._silences.stop)
        self._ticks.start()
        stack.callback(self._ticks.stop)
        for watch in (self._watch, self._log_watch, self._reach, self._publisher):
            watch.start()
            stack.callback(watch.stop)
        self._gateway.start()
        self._membership.start()
        stack.callback(self._membership.stop)

    def _surroundings(self) -> Surroundings:
        post = partial(
            AnswerPost,
            self._id,
            self._names,
            self._connection,
            self._gateway.deliver,
            self._membership.is_live,
        )
        return Surroundings(
            settings=self._settings,
            retention=retention_in(self._settings, self._partitions),
            storage=self._storage,
            postman=post,
            alert_stream=self._alert_stream,
            parts=self._parts,
            endpoint=self._gateway.endpoint,
            http_url=self._advertised,
            timings=self._timings,
            takeovers=self._takeovers,
            on_alerts=self._tell_alerts,
            turns=Turns(),
            pool=self.workers.opening,
            stop_pool=self.workers.ending,
        )

    def _front(self) -> Front:
        keys = self._made.keys
        proxy = Proxy(self._id)
        token = keys.tokens.read if keys is not None else None
        idle = partial(idle_partitions, self._partitions, self._host, self._membership)
        listings = Listings(
            lambda: self._membership.live, self._id, proxy, token, self._catalogue, idle
        )
        self._parts = ApiParts(
            stream_tokens=shared_stream_tokens(keys),
            connection_limits=self._limits,
            notifications=self._notifications,
        )
        parts = replace(
            self._parts,
            list_runs=listings.list_runs,
            all_ticks=self._ticks.reader,
            node=self._numbers,
        )
        events = self._storage.alert_events
        app = make_app(self._view, events, self._alert_stream, parts)
        tell_storage_errors(app)
        listings.summaries = app.state.shared.summaries
        return Front(
            app,
            self._host,
            self._membership,
            self._partitions,
            events,
            listings,
            self._catalogue,
            proxy,
            self._condition,
        )

    def _numbers(self) -> NodeNumbers:
        return read_numbers(
            self._membership, self._host, self._clocks, self._takeovers, self._partitions
        )

    def _notifying_epoch(self) -> int | None:
        """Return the epoch with which this node sends notifications, None if it does not."""
        return self._host.epoch_of(PARTITION) if self._membership.has_lease() else None

    def _set_rules(self, rules: Rules) -> None:
        self._view.rules = rules
        self._host.set_rules(rules)

    def _wake(self) -> None:
        """Say to readers that there are alert events."""
        self._alert_stream.wake()
        self._notifications.wake()

    def _tell_alerts(self) -> None:
        """Say that alert events were stored, to this node and all others."""
        self._watch.wake()
        with contextlib.suppress(NATSError):  # the others look each second
            self._connection.publish(self._names.alerts)
