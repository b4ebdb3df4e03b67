"""The engine's spans hang under its caller's, and say nothing of what was said."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.collector import Collector, attributes, running_collector
from tests.engine.serving import MODEL, serving
from tests.waiting import eventually

from tidewheel.engine.errors import StartError
from tidewheel.engine.settings import Settings
from tidewheel.engine.tracing import tracing_of

SECRET = "a-word-of-the-prompt"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, LEFT_OUT = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": SECRET}], "max_tokens": 4}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as found:
        yield found


async def test_a_reply_is_a_span_under_its_caller_s(collector: Collector) -> None:
    async with serving(trace_endpoint=collector.url, trace_flush_seconds=0.05) as client:
        path = "/v1/chat/completions"
        for traceparent in ("", LEFT_OUT, SAMPLED):
            headers = {"traceparent": traceparent, "X-Request-Id": f"r-{traceparent[-2:]}"} if traceparent else {}
            status, document, _ = await client.post(path, BODY, **headers)
            assert status == 200
        (span,) = await eventually(lambda: collector.spans, what="the span has come")
        assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == ("generate", TRACE, PARENT)
        told = attributes(span)
        assert told["tidewheel.request_id"] == "r-01"
        assert told["gen_ai.usage.output_tokens"] == 4
        assert told["gen_ai.usage.input_tokens"] == document["usage"]["prompt_tokens"]
        moments = [span.start_time_unix_nano, *(event.time_unix_nano for event in span.events), span.end_time_unix_nano]
        assert [event.name for event in span.events] == ["scheduled", "first token"]
        assert moments == sorted(moments)
        assert SECRET.encode() not in collector.raw


async def test_a_client_that_goes_away_leaves_a_failed_span(collector: Collector) -> None:
    async with serving(trace_endpoint=collector.url, trace_flush_seconds=0.05, step_time="20,0,0") as client:
        body = {**BODY, "stream": True, "max_tokens": 400}
        headers = {"traceparent": SAMPLED}
        async with client.session.post("/v1/chat/completions", json=body, headers=headers) as response:
            await response.content.readany()
        (span,) = await eventually(lambda: collector.spans, what="the span has come")
    assert span.status.code == 2
    assert attributes(span)["error.type"] == "aborted"


async def test_a_collector_that_is_away_delays_nobody() -> None:
    off = {"trace_endpoint": "http://127.0.0.1:9/v1/traces", "trace_flush_seconds": 0.01, "trace_timeout": 0.1}
    async with serving(**off) as client:
        replies = [client.post("/v1/chat/completions", BODY, traceparent=SAMPLED) for _ in range(3)]
        assert [status for status, _, _ in await asyncio.gather(*replies)] == [200] * 3


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(StartError, match="http"):
        tracing_of(Settings(model=MODEL, trace_endpoint="collector:4318"), model=MODEL)
    assert tracing_of(Settings(model=MODEL), model=MODEL) is None


def test_the_sdk_is_not_loaded_where_traces_are_off() -> None:
    loaded = "any(name.startswith('opentelemetry.sdk') for name in sys.modules)"
    code = f"import sys, tidewheel.engine.server; sys.exit({loaded})"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
