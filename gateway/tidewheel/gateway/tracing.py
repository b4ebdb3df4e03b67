"""OpenTelemetry traces of requests, off unless ``--trace-endpoint`` names a collector.

A request's span continues the client's ``traceparent``; each attempt has a span of its own, whose ``traceparent`` the
engine gets. They say where time went and how it ended: never a word of a prompt or a reply, no key, no user, no
replica's address. The SDK is imported only where traces are on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidewheel.gateway.accounting import Record
from tidewheel.gateway.observation import ReplyObserver
from tidewheel.gateway.relay import Answer
from tidewheel.gateway.requests import Request
from tidewheel.gateway.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_TRACEPARENT, _TRACESTATE = b"traceparent", b"tracestate"


class TracingError(ValueError):
    """Traces are asked for and cannot be sent; the message says what to change."""


class AttemptTrace:
    """One try on one replica."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.answer: Answer | None = None  # the replica's, once it was asked

    def headers(self) -> dict[bytes, bytes]:
        """What the engine gets, so that its spans hang under this one."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(self._span))
        return {name.encode(): value.encode() for name, value in carrier.items()}

    def end(self) -> None:
        """The attempt is over, also by a cancellation. Of a failure its kind is told, not its words."""
        answer = self.answer
        if answer is not None and answer.status:
            self._span.set_attribute("http.response.status_code", answer.status)
        failure = answer.done.result() if answer is not None and answer.done.done() else None
        if answer is None or failure is not None:
            self._span.set_attribute("error.type", "unreachable" if failure is None else type(failure).__name__)
            _mark_failed(self._span)
        self._span.end()


class RequestTrace:
    """One request for inference, from its arrival to its end."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span

    def attempt(self, number: int) -> AttemptTrace:
        """A try begins."""
        from opentelemetry import trace
        from opentelemetry.trace import SpanKind

        context = trace.set_span_in_context(self._span)
        span = self._tracer.start_span(
            "attempt", context, kind=SpanKind.CLIENT, attributes={"tidewheel.attempt": number}
        )
        return AttemptTrace(span)

    def note(self, event: str) -> None:
        """Something that happened now: ``turn``."""
        self._span.add_event(event)

    def end(self, record: Record, reply: ReplyObserver | None) -> None:
        """The request is over."""
        for name, value in _attributes(record, reply).items():
            if value is not None:
                self._span.set_attribute(name, value)
        if record.reason is not None or record.cancelled:
            _mark_failed(self._span)
        self._span.end()


class Tracing:
    """One per process. Spans are sent in the background; what the collector does not take is dropped."""

    def __init__(self, settings: Settings) -> None:
        """Raises TracingError."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        except ImportError:
            message = "--trace-endpoint needs the extra 'tracing': pip install 'tidewheel[gateway,tracing]'"
            raise TracingError(message) from None
        if not settings.trace_endpoint.startswith(("http://", "https://")):
            raise TracingError(f"--trace-endpoint: '{settings.trace_endpoint}' is no http(s) URL; end it in /v1/traces")
        resource = Resource.create({"service.name": "tidewheel-gateway"})
        sampler = ParentBased(TraceIdRatioBased(settings.trace_ratio))
        self._provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=settings.trace_endpoint, timeout=settings.trace_timeout)
        delay = settings.trace_flush_seconds * 1000
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=delay))
        self._tracer = self._provider.get_tracer("tidewheel.gateway")

    def request(self, request: Request, request_id: str, *, route: str) -> RequestTrace:
        """A request came; it continues the client's trace if it names one."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract(_carrier(request.headers))
        attributes = {"http.request.method": request.method, "http.route": route, "tidewheel.request_id": request_id}
        span = self._tracer.start_span(
            f"{request.method} {route}", context, kind=SpanKind.SERVER, attributes=attributes
        )
        return RequestTrace(self._tracer, span)

    def close(self) -> None:
        """Send what is left; blocks for as long as the collector may take."""
        self._provider.shutdown()


def tracing_of(settings: Settings) -> Tracing | None:
    """None where traces are off. Raises TracingError."""
    return Tracing(settings) if settings.trace_endpoint else None


def _carrier(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): headers[name].decode("latin-1") for name in (_TRACEPARENT, _TRACESTATE) if name in headers}


def _attributes(record: Record, reply: ReplyObserver | None) -> dict[str, Any]:
    route = record.route
    return {
        "http.response.status_code": record.status,
        "error.type": record.reason,
        "tidewheel.outcome": record.outcome,
        "tidewheel.attempts": record.attempts,
        "tidewheel.tier": record.tier or None,
        "tidewheel.attached": record.attached or None,
        "tidewheel.namespace": route.table.namespace if route is not None else None,
        "tidewheel.version": route.version if route is not None else None,
        "tidewheel.cohort": record.cohort,
        "gen_ai.request.model": route.table.spec.model if route is not None else None,
        "gen_ai.usage.input_tokens": reply.prompt_tokens if reply is not None else None,
        "gen_ai.usage.output_tokens": reply.output_tokens if reply is not None else None,
        "tidewheel.ttft_ms": _ms(record, reply),
    }


def _ms(record: Record, reply: ReplyObserver | None) -> int | None:
    if reply is None or reply.first_token_at is None:
        return None
    return round((reply.first_token_at - record.began) * 1000)


def _mark_failed(span: Span) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR))
