"""A receiver of OpenTelemetry's metrics: it decodes the real protobuf, and can refuse or hang."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

Points: TypeAlias = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Name and attributes to the value."""


class Collector:
    """Listens until it is closed.

    Args:
        port: Where; 0 for any.
        status: What it answers; None lets every request wait until it is closed.
    """

    def __init__(self, port: int = 0, status: int | None = 200) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self._closing = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                request = ExportMetricsServiceRequest()
                request.ParseFromString(body)
                collector.paths.append(self.path)
                collector.headers.append(dict(self.headers))
                collector.requests.append(request)
                if status is None:
                    collector._closing.wait()
                    return
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
                """Say nothing on stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def resource(self) -> dict[str, str]:
        """Who sent the last request."""
        (sender,) = self.requests[-1].resource_metrics
        return {own.key: own.value.string_value for own in sender.resource.attributes}

    @property
    def metrics(self) -> dict[str, tuple[str, str, str]]:
        """Name to kind, unit and description, of the last request."""
        return {
            own.name: (str(own.WhichOneof("data")), own.unit, own.description)
            for own in self._metrics()
        }

    @property
    def points(self) -> Points:
        """All values of the last request."""
        found: Points = {}
        for metric in self._metrics():
            data = metric.sum if metric.WhichOneof("data") == "sum" else metric.gauge
            for point in data.data_points:
                labels = frozenset((own.key, own.value.string_value) for own in point.attributes)
                is_int = point.WhichOneof("value") == "as_int"
                found[metric.name, labels] = point.as_int if is_int else point.as_double
        return found

    def _metrics(self) -> list[Any]:
        if not self.requests:
            return []
        (sender,) = self.requests[-1].resource_metrics
        (scope,) = sender.scope_metrics
        return list(scope.metrics)

    def close(self) -> None:
        """Stop listening."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
