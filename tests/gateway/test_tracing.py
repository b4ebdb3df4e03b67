"""Traces join client, gateway and engine, and say nothing of what was said."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.collector import Collector, attributes, running_collector
from tests.gateway.conftest import StartGateway, StartUpstream
from tests.gateway.replies.engines import TokenEngine
from tests.gateway.wire import ask
from tests.waiting import eventually

from tidewheel.gateway.settings import Settings
from tidewheel.gateway.tracing import TracingError, tracing_of

pytestmark = pytest.mark.component

SECRET, KEY = "a-word-of-the-prompt", "sk-a-key-of-a-client"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY = {"model": "chat", "messages": [{"role": "user", "content": SECRET}], "stream": True, "max_tokens": 5}
ME = f"authorization: Bearer {KEY}"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as found:
        yield found


async def test_a_trace_goes_from_the_client_through_the_gateway_to_the_engine(
    start_upstream: StartUpstream, serve: StartGateway, collector: Collector
) -> None:
    upstream = await start_upstream(TokenEngine())
    gateway = await serve({"v1": [upstream]}, "--trace-endpoint", collector.url, "--trace-flush-seconds", "0.05")
    status, headers, _ = await ask(gateway, BODY, ME, f"traceparent: 00-{TRACE}-{PARENT}-01")
    assert status == 200
    await eventually(lambda: len(collector.spans) == 2, within_seconds=60, what="both spans have come")
    (request,), (attempt,) = collector.named("POST /v1/chat/completions"), collector.named("attempt")
    assert request.trace_id.hex() == attempt.trace_id.hex() == TRACE
    assert request.parent_span_id.hex() == PARENT
    assert attempt.parent_span_id == request.span_id
    assert upstream.calls[0].headers["traceparent"] == f"00-{TRACE}-{attempt.span_id.hex()}-01"
    told = attributes(request)
    assert told["tidewheel.request_id"] == headers["x-request-id"]
    assert (told["gen_ai.request.model"], told["tidewheel.version"], told["tidewheel.outcome"]) == (
        "chat",
        "v1",
        "completed",
    )
    assert (told["gen_ai.usage.output_tokens"], told["http.response.status_code"]) == (5, 200)
    assert [event.name for event in request.events] == ["turn"]
    for word in (SECRET, KEY, upstream.address, "w1 "):
        assert word.encode() not in collector.raw


async def test_a_failed_request_is_a_failed_span_without_words(
    start_upstream: StartUpstream, serve: StartGateway, collector: Collector
) -> None:
    replicas = [await start_upstream(TokenEngine(break_after=0)) for _ in range(2)]
    arguments = ("--trace-endpoint", collector.url, "--trace-flush-seconds", "0.05", "--continuation-wait", "0.05")
    gateway = await serve({"v1": replicas}, *arguments)
    await ask(gateway, BODY, ME)
    await ask(gateway, {**BODY, "model": f"no-{SECRET}"}, ME)
    await eventually(
        lambda: len(collector.named("POST /v1/chat/completions")) == 2, within_seconds=60, what="both requests are told"
    )
    for span in collector.named("POST /v1/chat/completions"):
        assert span.status.code == 2
        assert attributes(span)["error.type"]
    assert SECRET.encode() not in collector.raw


async def test_a_collector_that_is_away_delays_nobody(start_upstream: StartUpstream, serve: StartGateway) -> None:
    off = (
        "--trace-endpoint",
        "http://127.0.0.1:9/v1/traces",
        "--trace-flush-seconds",
        "0.01",
        "--trace-timeout",
        "0.1",
    )
    gateway = await serve({"v1": [await start_upstream(TokenEngine())]}, *off)
    for _ in range(3):
        assert (await ask(gateway, BODY))[0] == 200


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(TracingError, match="http"):
        tracing_of(Settings(trace_endpoint="collector:4318"))
    assert tracing_of(Settings()) is None


def test_the_sdk_is_not_loaded_where_traces_are_off() -> None:
    """Its tracing, that is: redis imports what it finds of its metrics by itself."""
    loaded = "any(name.startswith(('opentelemetry.sdk.trace', 'opentelemetry.exporter')) for name in sys.modules)"
    code = f"import sys, tidewheel.gateway.program; sys.exit({loaded})"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
