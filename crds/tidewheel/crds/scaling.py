"""``spec.scaling`` of a ModelVersion: the bounds within which the operator chooses the number of replicas itself."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tidewheel.crds.base import MAXIMUM_REPLICAS, Record, Timestamp, list_map, obeys


class ScalingMode(StrEnum):
    """How far the operator may go."""

    OBSERVE = "observe"
    ADVISE = "advise"
    FLOOR = "floor"
    FULL = "full"


class Season(StrEnum):
    """A pattern that demand may repeat."""

    DAILY = "daily"
    WEEKLY = "weekly"


class SourceKind(StrEnum):
    """How a pool of nodes is paid for."""

    RESERVED = "reserved"
    ON_DEMAND = "onDemand"
    SPOT = "spot"


class ScalingEvent(Record):
    """Demand that history cannot know: a launch, a campaign, a holiday."""

    name: Annotated[str, Field(min_length=1, max_length=63, description="Name of the event, for people.")]
    start: Annotated[Timestamp, Field(description="When it begins, in UTC by RFC 3339.")]
    end: Annotated[Timestamp, Field(description="When it ends; from then on it counts for nothing.")]
    multiplier: Annotated[
        float,
        Field(gt=0, le=100, description="Demand as a multiple of what it would be without the event, such as 5.0."),
    ]
    ramp_seconds: Annotated[
        int,
        Field(ge=0, le=86_400, description="Seconds over which demand rises before start and falls after end."),
    ] = 0
    confidence: Annotated[
        float, Field(ge=0, le=1, description="Share of the extra demand to prepare for, 0.0 to 1.0.")
    ] = 1.0


class ScalingSource(Record):
    """A pool of nodes that replicas may come from."""

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            description="Name of the source: a label value on its pods.",
            json_schema_extra=obeys(
                "!format.labelValue().validate(self).hasValue()", "must be a label value: letters, digits, '-', '.'"
            ),
        ),
    ]
    kind: Annotated[
        SourceKind,
        Field(description="reserved is filled first, then onDemand; spot last, and never more than half of all."),
    ]
    max_replicas: Annotated[
        int, Field(ge=0, le=MAXIMUM_REPLICAS, description="Most replicas of this version in this source.")
    ]
    price: Annotated[
        float,
        Field(ge=0, le=1e6, description="Of a replica for an hour; among sources of a kind the cheaper goes first."),
    ] = 0.0
    node_selector: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]],
        Field(max_length=16, description="Labels of the source's nodes, added to those of replica.pod."),
    ] = {}
    toleration_keys: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=317)]],
        Field(max_length=16, description="Keys of taints on its nodes that replicas tolerate, whatever their value."),
    ] = []
    priority_class_name: Annotated[
        str | None, Field(max_length=253, description="PriorityClass of its pods, in place of that of replica.pod.")
    ] = None


class ReplicaShape(Record):
    """Sizes that say what a replica can carry before one has run: the model's, and those of one of its GPUs."""

    parameters_billions: Annotated[
        float, Field(gt=0, le=100_000, description="Parameters read for each token, in billions, such as 70.0.")
    ]
    layers: Annotated[int, Field(ge=1, le=10_000, description="Layers that keep KV, how many there are.")]
    kv_heads: Annotated[int, Field(ge=1, le=10_000, description="KV heads of a layer, how many there are.")]
    head_dimension: Annotated[int, Field(ge=1, le=10_000, description="Elements that a head keeps for each token.")] = (
        128
    )
    gpu_memory_gigabytes: Annotated[
        float, Field(gt=0, le=10_000, description="Memory of a GPU in GB; an H100 has 80.0.")
    ]
    gpu_terabytes_per_second: Annotated[
        float, Field(gt=0, le=1_000, description="Bandwidth of a GPU's memory in TB/s; an H100 has 3.35.")
    ]
    gpu_teraflops: Annotated[
        float, Field(gt=0, le=1_000_000, description="Dense 16-bit operations of a GPU in TFLOPS; an H100 has 989.0.")
    ]


class Scaling(Record):
    """Bounds within which the operator chooses the number of replicas itself, ahead of demand."""

    min_replicas: Annotated[
        int,
        Field(
            ge=0,
            le=MAXIMUM_REPLICAS,
            description="Never fewer replicas than this while a rule or table names the version.",
        ),
    ] = 0
    max_replicas: Annotated[
        int, Field(ge=1, le=MAXIMUM_REPLICAS, description="Never more replicas than this, whatever the demand.")
    ]
    mode: Annotated[
        ScalingMode,
        Field(
            description="observe: measure and forecast only; advise: also say in status what would be ordered; "
            "floor: raise the size and never lower it; full: raise and lower it."
        ),
    ] = ScalingMode.FULL
    spare: Annotated[
        int,
        Field(ge=0, le=1_000, description="Ready replicas beyond the need, for the loss of that many at once."),
    ] = 1
    headroom_percent: Annotated[
        int | None,
        Field(
            ge=0,
            le=400,
            description="A fixed margin on the forecast in percent. Absent: taken from the forecast's own recent "
            "errors at this lead, so that quantile holds.",
        ),
    ] = None
    quantile: Annotated[
        float,
        Field(
            ge=0.5,
            le=0.999,
            description="Share of the time in which capacity must be enough, for the margin. 0.99 is 99 %.",
        ),
    ] = 0.99
    seasons: Annotated[
        list[Season],
        Field(
            max_length=2,
            description="Patterns that may be claimed once history is long enough; an empty list: none.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ] = [Season.DAILY, Season.WEEKLY]
    time_zone: Annotated[
        str,
        Field(
            min_length=1,
            max_length=64,
            description="Zone whose clock people live by, such as Europe/Berlin: a day with a clock change is compared "
            "hour by hour of that clock.",
            json_schema_extra=obeys(
                "self.matches(r'^[A-Za-z]+([_+-]?[A-Za-z0-9]+)*(/[A-Za-z]+([_+-]?[A-Za-z0-9]+)*)*$')",
                "must be a name of the time zone database, such as Europe/Berlin or UTC",
            ),
        ),
    ] = "UTC"
    hold_seconds: Annotated[
        int,
        Field(ge=0, le=86_400, description="Down only to the highest need of so many seconds."),
    ] = 600
    events: Annotated[
        list[ScalingEvent],
        Field(
            max_length=32,
            description="Declared events. They multiply the forecast, stay out of the learnt profile and expire.",
            json_schema_extra=list_map("name"),
        ),
    ] = []
    gpu_budget: Annotated[
        int | None,
        Field(
            ge=0,
            le=1_000_000,
            description="Most GPUs (replicas, for CPU replicas) of this version; beyond it the degradation ladder "
            "acts. Absent: no limit but maxReplicas and the operator's own budget.",
        ),
    ] = None
    shape: Annotated[
        ReplicaShape | None,
        Field(
            description="From which the first size is worked out (roofline, half of it believed), until an engine has "
            "reported its own step times. Absent: as a sibling version with the same replica, else a stated guess."
        ),
    ] = None
    scale_to_zero: Annotated[
        bool,
        Field(description="No replica at all while there is no demand; the first request waits for a cold start."),
    ] = False
    sources: Annotated[
        list[ScalingSource],
        Field(
            max_length=8,
            description="Pools that replicas come from, in order of kind and price. Absent: as replica.pod says.",
            json_schema_extra=list_map("name"),
        ),
    ] = []
