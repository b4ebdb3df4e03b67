"""The scaling part of a ModelVersion's status: present, forecast, margin, need, order, and what binds."""

from typing import Annotated

from pydantic import Field

from tidewheel.crds.base import Record, Timestamp, list_map


class UnitStatus(Record):
    """One unit of capacity. All values are whole numbers of the unit."""

    unit: Annotated[str, Field(max_length=32, description="prefill tok/s, decode tok/s or KV blocks.")]
    present: Annotated[
        int | None,
        Field(
            ge=0, description="Demand offered now to all versions, in tokens a second or blocks; absent where unknown."
        ),
    ] = None
    forecast: Annotated[
        int, Field(ge=0, description="Demand forecast for now + lead, in tokens a second or blocks, without margin.")
    ] = 0
    need: Annotated[
        int, Field(ge=0, description="Tokens a second or blocks prepared for: peak until then x margin, or present.")
    ] = 0
    capacity: Annotated[
        int, Field(ge=0, description="Tokens a second or blocks that one replica carries within the SLO.")
    ] = 0
    margin_percent: Annotated[int, Field(ge=0, description="Margin on the forecast, in percent.")] = 0


class PendingReplica(Record):
    """A replica that was ordered and does not serve yet."""

    name: Annotated[str, Field(max_length=253, description="Name of its pod.")]
    expected_ready: Timestamp


class ScalingStatus(Record):
    """Why the version has the size that it has. Written when the size or what binds it changes, not all the time."""

    message: Annotated[str, Field(max_length=1024, description="All of it in one sentence.")] = ""
    binding: Annotated[
        str | None,
        Field(max_length=32, description="What sets the size: a unit, minimum, maximum, budget, blind or mode."),
    ] = None
    advised_replicas: Annotated[
        int, Field(ge=0, description="Replicas that would be ordered, whatever mode allows.")
    ] = 0
    shortfall: Annotated[int, Field(ge=0, description="Replicas that are needed and not allowed.")] = 0
    lead_seconds: Annotated[
        int, Field(ge=0, description="Seconds looked ahead: p95 of measured starts, from order to first token.")
    ] = 0
    units: Annotated[
        list[UnitStatus],
        Field(max_length=3, description="The arithmetic, unit by unit.", json_schema_extra=list_map("unit")),
    ] = []
    forecast_by: Annotated[
        str | None, Field(max_length=128, description="The predictor with the most weight, by its recent errors.")
    ] = None
    pending: Annotated[
        list[PendingReplica],
        Field(
            max_length=20, description="Ordered and not serving yet, at most 20.", json_schema_extra=list_map("name")
        ),
    ] = []
    updated_at: Annotated[Timestamp | None, Field(description="When this was worked out.")] = None


class CapacityStatus(Record):
    """Safe capacity of one replica at the version's SLO."""

    decode_tokens_per_second: Annotated[int, Field(ge=0, description="Output tokens a second.")]
    prefill_tokens_per_second: Annotated[int, Field(ge=0, description="Input tokens a second.")]
    kv_tokens: Annotated[int, Field(ge=0, description="Tokens that its KV blocks hold.")]
    max_streams: Annotated[int, Field(ge=0, description="Streams at once within the SLO.")]
    source: Annotated[
        str,
        Field(
            max_length=16, description="prior (from the shape), self-benchmark (warm-up) or measured (users' steps)."
        ),
    ]


class ColdStartSample(Record):
    """One measured start; whole seconds."""

    pod: Annotated[str, Field(max_length=253, description="Name of the pod.")]
    path: Annotated[str, Field(max_length=8, description="warm: its node had the image; cold: it had not.")]
    total_seconds: Annotated[int, Field(ge=0, description="Seconds from order to first token.")]
    scheduled_seconds: Annotated[int, Field(ge=0, description="Seconds until it had a node.")] = 0
    image_seconds: Annotated[int, Field(ge=0, description="Seconds from node to running container.")] = 0
    engine_seconds: Annotated[int, Field(ge=0, description="Seconds from container to first token.")] = 0
    ready_at: Annotated[Timestamp | None, Field(description="When the first token was there.")] = None


class ColdStartStatus(Record):
    """Measured starts of the version."""

    p50_seconds: Annotated[int, Field(ge=0, description="Seconds that half of the starts took at most.")] = 0
    p95_seconds: Annotated[int, Field(ge=0, description="Seconds that 95 % of the starts took at most.")] = 0
    samples: Annotated[
        list[ColdStartSample],
        Field(max_length=20, description="The last 20.", json_schema_extra=list_map("pod")),
    ] = []
