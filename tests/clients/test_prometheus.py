"""A Prometheus that answers in every way but the right one."""

import asyncio
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from tests.http_servers import QuietHandler, http_server
from tests.waiting import PATIENCE_SECONDS

from tidewheel.clients.prometheus import Prometheus, PrometheusError

Answerer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def prometheus_that(answer: Answerer) -> Iterator[str]:
    """URL of a server that answers each query so."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            answer(self)

    with http_server(Handler) as url:
        yield url


def says(body: Any, *, status: int = 200, clock_ahead: float = 0.0) -> Answerer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response_only(status)
        handler.send_header("Date", formatdate(time.time() + clock_ahead, usegmt=True))
        handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)

    return answer


def vector(*series: tuple[dict[str, str], str], **more: Any) -> dict[str, Any]:
    result = [{"metric": labels, "value": [1.0, value]} for labels, value in series]
    return {"status": "success", "data": {"resultType": "vector", "result": result}, **more}


async def ask(answer: Answerer, *, timeout_seconds: float = 2.0) -> Any:
    with prometheus_that(answer) as url:
        prometheus = Prometheus(url, timeout_seconds=timeout_seconds)
        try:
            return await prometheus.instant("up", at=1000.25)
        finally:
            prometheus.close()


async def test_samples_warnings_and_the_moment_asked_for() -> None:
    asked: list[dict[str, list[str]]] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(parse_qs(urlparse(handler.path).query))
        says(vector(({"pod": "a"}, "3"), ({"pod": "b"}, "NaN"), warnings=["one store is away"]))(handler)

    got = await ask(answer)
    assert asked == [{"query": ["up"], "time": ["1000.250"]}]
    assert [(dict(s.labels), s.value) for s in got.samples[:1]] == [({"pod": "a"}, 3.0)]
    assert math.isnan(got.samples[1].value)
    assert got.warnings == ("one store is away",)
    assert abs(got.clock_ahead) <= 1


async def test_infinities_are_numbers_and_an_empty_answer_is_empty() -> None:
    got = await ask(says(vector(({}, "+Inf"), ({}, "-Inf"))))
    assert [sample.value for sample in got.samples] == [math.inf, -math.inf]
    assert (await ask(says(vector()))).samples == ()


async def test_a_clock_that_differs_is_told() -> None:
    assert (await ask(says(vector(), clock_ahead=-30))).clock_ahead == pytest.approx(-30, abs=1)


@pytest.mark.parametrize(
    "answer",
    [
        says({"status": "error", "error": "query timed out"}, status=503),
        says({"status": "error", "error": "parse error"}, status=400),
        says(b"<html>a proxy</html>"),
        says({"status": "success"}),
        says(vector(({}, "many"))),
        says(b"", status=302),
        lambda handler: setattr(handler, "close_connection", True),
    ],
    ids=["503", "400", "no JSON", "no data", "no number", "a redirect to nowhere", "a broken connection"],
)
async def test_what_is_no_answer_is_an_error_that_says_where(answer: Answerer) -> None:
    with pytest.raises(PrometheusError, match=r"127\.0\.0\.1"):
        await ask(answer)


async def test_nobody_there_is_an_error() -> None:
    prometheus = Prometheus("http://127.0.0.1:9", timeout_seconds=1)
    with pytest.raises(PrometheusError, match=r"127\.0\.0\.1:9"):
        await prometheus.instant("up", at=0)
    prometheus.close()


async def test_a_half_open_connection_is_given_up_and_holds_up_nobody() -> None:
    release = threading.Event()
    with prometheus_that(lambda handler: release.wait(10) and None) as url:
        prometheus = Prometheus(url, timeout_seconds=0.2)
        asked = asyncio.create_task(prometheus.instant("up", at=0))
        await asyncio.sleep(0)  # the loop goes on meanwhile
        assert not asked.done()
        with pytest.raises(PrometheusError):
            await asyncio.wait_for(asked, PATIENCE_SECONDS)
        release.set()
        prometheus.close()
