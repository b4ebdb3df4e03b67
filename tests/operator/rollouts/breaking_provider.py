"""A server that answers as Prometheus does, from counters in memory, and breaks in whichever way it is told to."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.http_servers import QuietHandler, http_server

from tidewheel.rollout.judge.settings import BUCKET_FACTOR

Sample = dict[str, Any]
EDGES = tuple(0.01 * BUCKET_FACTOR**step for step in range(30))
_NAME = re.compile(r"(tidewheel_\w+)\{")


@dataclass
class Gateway:
    """What one gateway has counted of one version."""

    requests: float = 0.0
    errors: float = 0.0
    over_slo: float = 0.0
    buckets: list[float] = field(default_factory=lambda: [0.0] * (len(EDGES) + 1))

    def serve(self, requests: float, *, error_share: float = 0.0, slow: float = 1.0) -> None:
        """Latencies spread over six edges around 0.02 s times ``slow``."""
        self.requests += requests
        self.errors += requests * error_share
        first = min(len(EDGES) - 6, next(n for n, edge in enumerate(EDGES) if edge >= 0.02 * slow))
        for number in range(6):
            for bucket in range(first + number, len(EDGES) + 1):
                self.buckets[bucket] += requests / 6


@dataclass
class Provider:
    """``break_samples`` may change the samples of a query, ``break_answer`` the whole answer."""

    counters: dict[tuple[str, str], Gateway] = field(default_factory=dict)
    at: float = 0.0
    scraped: float | None = None
    clock_ahead: float = 0.0
    break_samples: Callable[[str, list[Sample]], list[Sample]] | None = None
    break_answer: Callable[["Answering"], bool] | None = None
    """True: it has answered, in its own way."""
    extra: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def of(self, gateway: str, version: str) -> Gateway:
        return self.counters.setdefault((gateway, version), Gateway())

    def heal(self) -> None:
        """As good as new."""
        self.break_samples = self.break_answer = self.scraped = None
        self.clock_ahead, self.extra = 0.0, {}

    def samples(self, query: str) -> list[Sample]:
        name = _NAME.search(query)
        assert name is not None, query
        if query.startswith("min by (version) (timestamp("):
            moment = self.at if self.scraped is None else self.scraped
            found = [self._sample({"version": version}, moment) for version in sorted({v for _, v in self.counters})]
        else:
            found = [
                self._sample({"version": version, "pod": gateway, "instance": f"{gateway}:9090", **more}, value)
                for (gateway, version), counted in self.counters.items()
                for more, value in _values(name.group(1), counted)
            ]
        return self.break_samples(query, found) if self.break_samples is not None else found

    def _sample(self, labels: dict[str, str], value: float) -> Sample:
        return {"metric": labels, "value": [self.at, repr(value)]}


def _values(metric: str, counted: Gateway) -> list[tuple[dict[str, str], float]]:
    match metric:
        case "tidewheel_requests_total":
            return [({}, counted.requests)]
        case "tidewheel_request_errors_total":
            return [({}, counted.errors)]
        case "tidewheel_stream_stalls_total":
            return [({}, 0.0)]
        case "tidewheel_over_slo_total":
            return [({"metric": kind}, counted.over_slo) for kind in ("tpot", "ttft")]
        case "tidewheel_in_flight":
            return [({}, 1.0)]
        case _:
            edges = [*map(repr, EDGES), "+Inf"]
            return [({"le": edge}, count) for edge, count in zip(edges, counted.buckets, strict=True)]


class Answering(QuietHandler):
    """One question."""

    provider: Provider

    def do_GET(self) -> None:
        provider = self.provider
        query = parse_qs(urlsplit(self.path).query)["query"][0]
        provider.asked.append(query)
        if provider.break_answer is not None and provider.break_answer(self):
            return
        result = {"resultType": "vector", "result": provider.samples(query)}
        self.say(json.dumps({"status": "success", "data": result, **provider.extra}).encode())

    def say(self, body: bytes, *, status: int = 200, length: int | None = None) -> None:
        """``length`` other than the body's: the rest never comes."""
        self.send_response_only(status)
        self.send_header("Date", formatdate(time.time() + self.provider.clock_ahead, usegmt=True))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


@contextmanager
def serving(provider: Provider) -> Iterator[str]:
    """Its URL."""
    handler = type("Handler", (Answering,), {"provider": provider})
    with http_server(handler) as url:
        yield url
