"""What a Prometheus would say of two versions that are served steadily: as an object, and as a server."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import log
from statistics import NormalDist
from urllib.parse import parse_qs, urlparse

from tests.http_servers import QuietHandler, http_server

from tidewheel.clients.prometheus import Answer, PrometheusError, Sample

EDGES = tuple(0.005 * 1.2 ** (step / 3) for step in range(40))
SHARES = tuple(NormalDist(log(0.015), 0.35).cdf(log(edge)) for edge in EDGES)
PER_SECOND = {"v42": 4_000.0, "v43": 1_000.0}


class Counters:
    """A gateway that has served both versions since ``began``; ``failing`` is the new one's share of errors.

    While ``quiet`` there are too few requests to tell anything: a rollout stays where it is.
    """

    def __init__(self) -> None:
        self.began = time.time() - 10
        self.failing = 0.0
        self.quiet = False
        self.away: str = ""

    async def instant(self, query: str, *, at: float) -> Answer:
        if self.away:
            raise PrometheusError(self.away)
        return Answer(samples=tuple(self.samples(query, at)), clock_ahead=0.0)

    def samples(self, query: str, at: float) -> list[Sample]:
        """Of the series that the query is about."""
        if query.startswith("min by"):
            return [Sample({"version": version}, at) for version in PER_SECOND]
        name = query.partition("tidewheel_")[2].partition("{")[0]
        return [sample for version in PER_SECOND for sample in self._samples(name, version, at)]

    def close(self) -> None:
        """Nothing is open."""

    def _samples(self, name: str, version: str, at: float) -> list[Sample]:
        labels = {"version": version, "pod": "gateway-a"}
        per_second = PER_SECOND[version] / (100 if self.quiet else 1)
        requests = float(round((at - self.began) * per_second))
        if name == "requests_total":
            return [Sample(labels, requests)]
        if name == "request_errors_total":
            return [Sample(labels, requests * (self.failing if version == "v43" else 0.0))]
        if name == "stream_stalls_total":
            return [Sample(labels, 0.0)]
        if name == "over_slo_total":
            return [Sample({**labels, "metric": metric}, 0.0) for metric in ("tpot", "ttft")]
        if name == "in_flight":
            return [Sample(labels, 10.0)]
        les = (*map(str, EDGES), "+Inf")
        return [Sample({**labels, "le": le}, requests * share) for le, share in zip(les, (*SHARES, 1.0), strict=True)]


@contextmanager
def served(counters: Counters) -> Iterator[str]:
    """URL of a server that answers instant queries; 503 while ``away`` says why."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            asked = parse_qs(urlparse(self.path).query)
            samples = [] if counters.away else counters.samples(asked["query"][0], float(asked["time"][0]))
            result = [{"metric": dict(s.labels), "value": [0, str(s.value)]} for s in samples]
            body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
            self.send_response(503 if counters.away else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http_server(Handler) as url:
        yield url
