"""What is written down about a finished request: its metrics and its log line, once, with no word of its content."""

import logging
from dataclasses import dataclass
from typing import Final

from tidewheel.crds.modelversion import Slo
from tidewheel.gateway.cohorts import REST
from tidewheel.gateway.metrics import REASONS, LatencySeries, Metrics, Series
from tidewheel.gateway.observation import ReplyObserver
from tidewheel.gateway.routing import Route

_log = logging.getLogger("tidewheel.gateway.access")

_CLIENT_GONE: Final = 499
_VERSION_FAULTS: Final = frozenset(REASONS)


@dataclass(slots=True)
class Record:
    """Filled while the request runs; times are of the loop's clock, in seconds."""

    request_id: str
    client_id: str | None
    began: float
    ended: float = 0.0
    route: Route | None = None
    status: int | None = None
    reason: str | None = None
    attempts: int = 0
    cancelled: bool = False
    shed: bool = False
    tier: str = ""
    expected_prompt: int | None = None
    expected_output: int = 0
    attached: bool = False  # to a reply that another request began, and is counted with it
    lost_on: str | None = None  # uid of the replica whose stream broke last

    def note_failure(self, status: int, reason: str) -> None:
        """How it ended, if not well. The first word counts."""
        self.status = self.status or status
        self.reason = self.reason or reason

    @property
    def outcome(self) -> str:
        """completed, failed, cancelled, or shed before any work."""
        if self.cancelled:
            return "cancelled"
        if self.shed:
            return "shed"
        return "failed" if self.reason else "completed"

    @property
    def cohort(self) -> str:
        """Pinned requests are left out of comparisons of versions."""
        return self.route.cohort if self.route is not None else REST


def settle(record: Record, reply: ReplyObserver | None, *, metrics: Metrics, access_log: bool) -> None:
    """Count one finished request and log it."""
    status = record.status or _CLIENT_GONE
    code_class = f"{min(status // 100, 5)}xx"
    if record.route is None:
        metrics.count_unrouted(code_class, record.tier)
    else:
        series = metrics.of(record.route.key)
        _settle_routed(record, reply, route=record.route, series=series, code_class=code_class)
    if access_log:
        _write_line(record, reply, status=status)


def _settle_routed(
    record: Record, reply: ReplyObserver | None, *, route: Route, series: Series, code_class: str
) -> None:
    cohort = series.cohort(record.cohort)
    cohort.requests[code_class, record.tier].inc()
    if record.reason in _VERSION_FAULTS:
        cohort.errors[record.reason].inc()
    if reply is None:
        series.offered["prompt", record.outcome].inc(record.expected_prompt or 0)
        series.offered["output", record.outcome].inc(record.expected_output)
    else:
        reply.finish(now=record.ended)
        _settle_tokens(record, reply, series=series)
        target = route.table.targets.get(route.version)
        _settle_latency(record, reply, cohort=cohort, slo=target.slo if target is not None else None)


def _settle_tokens(record: Record, reply: ReplyObserver, *, series: Series) -> None:
    series.stalls.inc(reply.stalls)
    series.cached_prompt_tokens.inc(reply.cached_tokens)
    prompt = record.expected_prompt if reply.prompt_tokens is None else reply.prompt_tokens
    if prompt is not None:
        series.offered["prompt", record.outcome].inc(prompt)
    if reply.prompt_tokens is not None:
        series.prompt_tokens.observe(reply.prompt_tokens)
    if reply.output_tokens:
        series.offered["output", record.outcome].inc(reply.output_tokens)
        series.output_tokens.observe(reply.output_tokens)


def _settle_latency(record: Record, reply: ReplyObserver, *, cohort: LatencySeries, slo: Slo | None) -> None:
    if reply.first_token_at is not None:
        ttft = reply.first_token_at - record.began
        cohort.ttft.observe(ttft)
        if slo is not None and ttft * 1000 > slo.ttft_ms:
            cohort.over_slo["ttft"].inc()
    tpot = reply.seconds_per_token
    if tpot is not None:
        cohort.tpot.observe(tpot)
        if slo is not None and tpot * 1000 > slo.tpot_ms:
            cohort.over_slo["tpot"].inc()


def _write_line(record: Record, reply: ReplyObserver | None, *, status: int) -> None:
    fields: dict[str, object] = {
        "request_id": record.request_id,
        "status": status,
        "outcome": record.outcome,
        "attempts": record.attempts,
        "seconds": round(record.ended - record.began, 4),
    }
    if record.client_id:
        fields["client_request_id"] = record.client_id[:128]
    if record.route is not None:
        fields |= record.route.key._asdict()
    if record.reason:
        fields["reason"] = record.reason
    if reply is not None and reply.first_token_at is not None:
        fields["ttft_seconds"] = round(reply.first_token_at - record.began, 4)
        fields["output_tokens"] = reply.output_tokens
    _log.info("request", extra=fields)
