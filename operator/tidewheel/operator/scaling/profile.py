"""What is learnt about a model, small enough for a ConfigMap, so that a restart forgets nothing."""

import json
from collections.abc import Mapping
from typing import Any, Final

from tidewheel.autoscaler.outlook import DemandOutlook
from tidewheel.autoscaler.units import Demand, Unit
from tidewheel.crds.names import MANAGED_BY, MANAGED_BY_LABEL, MODEL_LABEL
from tidewheel.operator.planning.records import ModelKey

FORMAT: Final = 1
KEY: Final = "profile"
_LARGEST_BUCKETS: Final = 20_160
"""Two weeks of minutes: 150 kB of text at most."""


def profile_name(model: str) -> str:
    """Name of the ConfigMap of a model."""
    return f"{model}-demand-profile"


def profile_text(outlook: DemandOutlook, *, buckets: int) -> str | None:
    """The last buckets of both token rates; three digits are enough. None while there are none."""
    end = outlook.next_bucket
    if end is None:
        return None
    count = min(buckets, _LARGEST_BUCKETS)
    series = {
        unit.name.lower(): [
            None if value is None else float(f"{value:.3g}") for value in outlook.recent_buckets(unit, count)
        ]
        for unit in (Unit.PREFILL, Unit.DECODE)
    }
    body = {"format": FORMAT, "stepSeconds": outlook.settings.step_seconds, "end": end, **series}
    return json.dumps(body, separators=(",", ":"))


def saved_buckets(text: str, *, step_seconds: int) -> Mapping[int, Demand]:
    """The buckets of a saved profile, holes left out; none where the text is unusable or of other buckets."""
    try:
        body: Mapping[str, Any] = json.loads(text)
        if body["format"] != FORMAT or body["stepSeconds"] != step_seconds:
            return {}
        pairs = list(zip(body["prefill"], body["decode"], strict=True))
        begin = int(body["end"]) - len(pairs)
        return {
            begin + offset: Demand(prefill=float(pair[0]), decode=float(pair[1]), kv_blocks=0.0)
            for offset, pair in enumerate(pairs)
            if None not in pair
        }
    except (ValueError, KeyError, TypeError):
        return {}


def profile_config_map(key: ModelKey, text: str) -> dict[str, Any]:
    """The object to write."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": profile_name(key.model),
            "namespace": key.namespace,
            "labels": {MANAGED_BY_LABEL: MANAGED_BY, MODEL_LABEL: key.model},
        },
        "data": {KEY: text},
    }
