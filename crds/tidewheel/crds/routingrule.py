"""RoutingRule: where requests should go."""

from typing import Annotated

from pydantic import Field

from tidewheel.crds.base import ModelName, Record, VersionName, list_map
from tidewheel.crds.conditions import Condition
from tidewheel.crds.rollout import Rollout
from tidewheel.crds.rolloutstatus import RolloutStatus
from tidewheel.crds.tiers import Tiers


class TrafficTarget(Record):
    """A version and its share in whole percent."""

    version: VersionName
    percent: Annotated[
        int, Field(ge=0, le=100, description="Share of requests in whole percent. All shares of a rule sum to 100.")
    ]


class RoutingRuleSpec(Record):
    """The split wanted for one model in one namespace."""

    model: ModelName
    traffic: Annotated[
        list[TrafficTarget],
        Field(
            min_length=1,
            max_length=8,
            description="The split wanted, in whole percent that sum to 100; each version once, at most 8. They "
            "must exist as ModelVersions of this namespace before traffic moves.",
            json_schema_extra=list_map("version"),
        ),
    ]
    rollout: Annotated[Rollout, Field(description="How a new split is reached.")] = Rollout()
    tiers: Annotated[Tiers | None, Field(description="Queue, quota and degradation by tier; absent: no limits.")] = None
    paused: Annotated[
        bool | None,
        Field(
            description="No traffic moves to a new version while this is true; one that is worse is still rolled back. "
            "Default: false."
        ),
    ] = None


class EffectiveTarget(Record):
    """A version and its share as gateways are told now."""

    version: VersionName
    weight: Annotated[int, Field(ge=0, le=10_000, description="Share in basis points; 10,000 is all.")]
    observed_weight: Annotated[
        int | None,
        Field(ge=0, le=10_000, description="Share of requests that arrived in the judged step, in basis points."),
    ] = None


class RoutingRuleStatus(Record):
    """What the operator saw last."""

    traffic: Annotated[
        list[EffectiveTarget], Field(max_length=9, description="Mirror of the RoutingTable: the split in force.")
    ] = []
    split: Annotated[
        str | None,
        Field(max_length=256, description="The split in force in words such as 'v42:90% v43:10%', for the column."),
    ] = None
    rollout: Annotated[RolloutStatus | None, Field(description="The rollout under way, or the last one.")] = None
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16,
            description="Ready, Reconciling, Stalled, Accepted, GatePassing, RollbackArmed, Degraded.",
            json_schema_extra=list_map("type"),
        ),
    ] = []
    observed_generation: Annotated[
        int | None, Field(ge=-1, description="Generation of the spec that this status answers; -1: none yet.")
    ] = None
