"""History at an operator's start: what Prometheus has, and a saved profile where it keeps less."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlparse

import pytest
from tests.http_servers import QuietHandler, http_server
from tests.operator.builders import KEY

from tidewheel.autoscaler.units import Demand
from tidewheel.clients.prometheus import Prometheus, PrometheusError
from tidewheel.operator.scaling.past import PastReader, credible_buckets, joined

STEP = 300


class Recorded:
    """A Prometheus over HTTP with rates by bucket; a bucket that is left out has no samples."""

    def __init__(self, rates: dict[int, float], *, gateways: int = 2, hits: float | None = None) -> None:
        self.rates = rates
        self.gateways = dict.fromkeys(rates, gateways)
        self.hits = hits
        self.asked: list[dict[str, str]] = []

    @contextmanager
    def served(self) -> Iterator[Prometheus]:
        recorded = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                recorded._answer(self)

        with http_server(Handler) as url:
            prometheus = Prometheus(url, timeout_seconds=60)
            try:
                yield prometheus
            finally:
                prometheus.close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlparse(handler.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.asked.append({"path": url.path, **query})
        first, last = int(query["start"]) // STEP - 1, int(query["end"]) // STEP - 1
        buckets = [bucket for bucket in range(first, last + 1) if bucket in self.rates]
        text = query["query"]
        if text.startswith("sum by (kind)"):
            values = [[(bucket + 1) * STEP, str(self.rates[bucket])] for bucket in buckets]
            series = [{"metric": {"kind": kind}, "values": values} for kind in ("prompt", "output")]
        elif text.startswith("count"):
            counts = [[(bucket + 1) * STEP, str(self.gateways[bucket])] for bucket in buckets]
            series = [{"metric": {}, "values": counts}]
        elif self.hits is not None:
            shares = [[(bucket + 1) * STEP, str(self.hits)] for bucket in buckets]
            series = [{"metric": {}, "values": shares}]
        else:
            series = []
        body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}}).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


async def test_buckets_are_what_prometheus_says_at_their_ends_and_what_it_lacks_is_missing_not_zero() -> None:
    recorded = Recorded({100: 10.0, 101: 20.0, 103: 0.0}, hits=0.25)
    with recorded.served() as prometheus:
        found = await PastReader(prometheus, step_seconds=STEP, window_seconds=60).read(KEY, first=90, end=110)
    assert {bucket: (demand.prefill, demand.decode) for bucket, demand in found.items()} == {
        100: (7.5, 10.0),
        101: (15.0, 20.0),
        103: (0.0, 0.0),
    }
    first = recorded.asked[0]
    assert (first["path"], first["start"], first["end"], first["step"]) == (
        "/api/v1/query_range",
        str(91 * STEP),
        str(110 * STEP),
        str(STEP),
    )
    assert 'namespace="shop",model="chat"' in first["query"]
    assert len(recorded.asked) == 3


async def test_more_points_than_prometheus_gives_at_once_are_asked_for_in_parts() -> None:
    recorded = Recorded({0: 1.0, 15_000: 2.0})
    with recorded.served() as prometheus:
        found = await PastReader(prometheus, step_seconds=STEP, window_seconds=60).read(KEY, first=0, end=15_001)
    assert found.keys() == {0, 15_000}
    spans = [int(each["end"]) - int(each["start"]) for each in recorded.asked]
    assert max(spans) < 11_000 * STEP


async def test_a_prometheus_that_cannot_say_is_an_error_and_not_an_empty_past() -> None:
    class Refusing(QuietHandler):
        def do_GET(self) -> None:
            self.send_error(422, "query processing would load too many samples")

    with http_server(Refusing) as url:
        prometheus = Prometheus(url, timeout_seconds=60)
        with pytest.raises(PrometheusError, match="422"):
            await PastReader(prometheus, step_seconds=STEP, window_seconds=60).read(KEY, first=0, end=10)
        prometheus.close()


def test_buckets_in_which_half_the_gateways_were_not_scraped_are_no_evidence() -> None:
    counts = dict.fromkeys(range(10), 4.0) | {5: 2.0}
    assert credible_buckets(counts, step_seconds=60) == set(range(10)) - {5}


def test_what_is_measured_holds_over_what_was_saved_and_gaps_are_holes() -> None:
    def at(level: float) -> Demand:
        return Demand(prefill=level, decode=level, kv_blocks=0.0)

    first, demands = joined({7: at(70.0), 8: at(80.0)}, {4: at(4.0), 7: at(7.0)})
    assert first == 4
    assert [None if demand is None else demand.decode for demand in demands] == [4.0, None, None, 70.0, 80.0]
    assert joined({}, {}) == (0, ())
