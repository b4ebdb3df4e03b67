"""What the judge asks Prometheus: one query per metric, both versions in each, all at one moment. Pure.

Counters are read raw and per gateway, so that increases are taken here, where the restart of one gateway can be told
from silence. Requests with a version pin are left out wherever the cohort is a label.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidewheel.rollout.judge.settings import ARM_PLACEHOLDER, CustomMetric


class Series(StrEnum):
    """One query each."""

    REQUESTS = "requests"
    ERRORS = "errors"
    STALLS = "stalls"
    OVER_SLO = "over_slo"
    TPOT = "tpot"
    TTFT = "ttft"
    PROMPT_TOKENS = "prompt_tokens"
    IN_FLIGHT = "in_flight"
    AGE = "age"


GATEWAY_LABELS: Final = ("pod", "instance")
"""Which gateway a sample is of: the pod's name where the scrape configuration gives it, else the address scraped."""

_NOT_PINNED: Final = ',cohort!="pinned"'
_METRICS: Final = {
    Series.REQUESTS: ("tidewheel_requests_total", _NOT_PINNED, ()),
    Series.ERRORS: ("tidewheel_request_errors_total", _NOT_PINNED, ()),
    Series.STALLS: ("tidewheel_stream_stalls_total", "", ()),
    Series.OVER_SLO: ("tidewheel_over_slo_total", _NOT_PINNED, ("metric",)),
    Series.TPOT: ("tidewheel_tpot_seconds_bucket", _NOT_PINNED, ("le",)),
    Series.TTFT: ("tidewheel_ttft_seconds_bucket", _NOT_PINNED, ("le",)),
    Series.PROMPT_TOKENS: ("tidewheel_prompt_tokens_bucket", "", ("le",)),
    Series.IN_FLIGHT: ("tidewheel_in_flight", "", ()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """The two versions of a model that are compared."""

    namespace: str
    model: str
    base: str
    canary: str


def queries(arms: Arms) -> Mapping[Series, str]:
    """PromQL by metric. Names of ours need no escaping: letters, digits and '-' only."""
    who = f'namespace="{arms.namespace}",model="{arms.model}",version=~"{arms.base}|{arms.canary}"'
    found = {
        series: f"sum by ({', '.join(('version', *GATEWAY_LABELS, *more))}) ({name}{{{who}{extra}}})"
        for series, (name, extra, more) in _METRICS.items()
    }
    requests, _, _ = _METRICS[Series.REQUESTS]
    found[Series.AGE] = f"min by (version) (timestamp({requests}{{{who}}}))"
    return found


def custom_query(metric: CustomMetric, version: str) -> str:
    """A user's query for one version."""
    return metric.query.replace(ARM_PLACEHOLDER, version)
