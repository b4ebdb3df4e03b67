"""The metrics that the judge knows by itself."""

from enum import StrEnum
from typing import Final

from tidewheel.crds.rolloutchoices import Metric


class Latency(StrEnum):
    """Latency metrics: one observation per request, in seconds."""

    TPOT = "tpot"
    TTFT = "ttft"


SLO_OF: Final = {Latency.TPOT: Metric.TPOT_SLO, Latency.TTFT: Metric.TTFT_SLO}
RATIO_OF: Final = {Latency.TPOT: Metric.TPOT, Latency.TTFT: Metric.TTFT}
LITERAL_METRICS: Final = (Metric.ERRORS, Metric.TPOT_SLO, Metric.TPOT)
"""The rule set of `mode: limits`, in its order; TTFT only if it is asked for."""
ALL_METRICS: Final = tuple(Metric)
WORDS: Final = {
    Metric.ERRORS: "errors",
    Metric.TPOT_SLO: "TPOT over its SLO",
    Metric.TPOT: "TPOT",
    Metric.TTFT_SLO: "TTFT over its SLO",
    Metric.TTFT: "TTFT",
    Metric.STALLS: "stalls",
}
