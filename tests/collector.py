"""An OpenTelemetry collector of our own."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.http_servers import QuietHandler, http_server


@dataclass
class Collector:
    """Takes spans as an OpenTelemetry collector does."""

    url: str = ""
    raw: bytes = b""
    spans: list[Any] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self.lock:
            self.raw += body
            self.spans += [
                span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans
            ]

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


@contextmanager
def running_collector() -> Iterator[Collector]:
    """One whose spans can be read while the block runs."""
    found = Collector()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

    with http_server(Handler) as url:
        found.url = f"{url}/v1/traces"
        yield found


def attributes(span: Any) -> dict[str, Any]:
    """Of a span, as plain values."""
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}
