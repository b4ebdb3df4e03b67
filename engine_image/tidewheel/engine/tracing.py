"""OpenTelemetry spans of replies, off unless ``--trace-endpoint`` names a collector.

A span is made when its reply is over, from times that are kept anyway, and only for a caller that sent a sampled
``traceparent``: whoever stands in front decides what is traced. It says where time went and how it ended, never a word
of a prompt or a reply, and not who asked. The SDK is imported only where traces are on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from tidewheel.engine.errors import StartError
from tidewheel.engine.replies import Reply
from tidewheel.engine.settings import Settings

_HEADERS = ("traceparent", "tracestate")


def trace_parent(headers: Mapping[str, str]) -> dict[str, str]:
    """What a caller says of its trace."""
    return {name: headers[name] for name in _HEADERS if name in headers}


class Tracing:
    """One per process. Spans are sent in the background; what the collector does not take is dropped."""

    def __init__(self, settings: Settings, *, model: str) -> None:
        """Raises StartError."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
        except ImportError:
            message = "--trace-endpoint needs the extra 'tracing': pip install 'tidewheel[engine,tracing]'."
            raise StartError(message) from None
        endpoint = settings.trace_endpoint
        if not endpoint.startswith(("http://", "https://")):
            raise StartError(f"--trace-endpoint: '{endpoint}' is no http(s) URL; end it in /v1/traces.")
        resource = Resource.create({"service.name": "tidewheel-engine"})
        self._provider = TracerProvider(resource=resource, sampler=ParentBased(ALWAYS_OFF), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=settings.trace_timeout)
        delay = settings.trace_flush_seconds * 1000
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=delay))
        self._tracer = self._provider.get_tracer("tidewheel.engine")
        self._model = model

    def record(self, reply: Reply, *, label: str, finished: bool, now: float) -> None:
        """A reply is over. ``now`` and the request's times are of one monotonic clock, in seconds."""
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        epoch = time.time_ns() - round(now * 1e9)

        def moment(seconds: float) -> int:
            return epoch + round(seconds * 1e9)

        requests = reply.requests
        span = self._tracer.start_span(
            "generate",
            TraceContextTextMapPropagator().extract(reply.parent),
            kind=SpanKind.SERVER,
            attributes={**self._attributes(reply), "tidewheel.request_id": label},
            start_time=moment(requests[0].arrived_at),
        )
        for event, at in (
            ("scheduled", _earliest(request.scheduled_at for request in requests)),
            ("first token", _earliest(request.first_token_at for request in requests)),
        ):
            if at is not None:
                span.add_event(event, timestamp=moment(at))
        codes = [request.error.code or "failed" for request in requests if request.error is not None]
        if codes or not finished:
            span.set_attribute("error.type", codes[0] if codes else "aborted")
            span.set_status(Status(StatusCode.ERROR))
        span.end(moment(now))

    def _attributes(self, reply: Reply) -> dict[str, Any]:
        return {
            "gen_ai.request.model": self._model,
            "gen_ai.usage.input_tokens": reply.num_prompt_tokens,
            "gen_ai.usage.output_tokens": reply.num_output_tokens,
            "tidewheel.cached_tokens": reply.num_cached_tokens,
            "tidewheel.choices": len(reply.choices),
            "tidewheel.lane": reply.requests[0].lane,
            "tidewheel.preemptions": sum(request.num_preemptions for request in reply.requests),
        }

    def close(self) -> None:
        """Send what is left; blocks for as long as the collector may take."""
        self._provider.shutdown()


def tracing_of(settings: Settings, *, model: str) -> Tracing | None:
    """None where traces are off. Raises StartError."""
    return Tracing(settings, model=model) if settings.trace_endpoint else None


def _earliest(moments: Iterable[float | None]) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)
