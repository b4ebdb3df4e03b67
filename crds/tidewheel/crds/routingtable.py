"""RoutingTable: where requests go now.

Internal: written by the operator and by `kubectl rollback`, obeyed by the gateways.
"""

from typing import Annotated

from pydantic import Field

from tidewheel.crds.base import Digest, ModelName, Record, Timestamp, VersionName, list_map
from tidewheel.crds.modelversion import Runtime, Slo
from tidewheel.crds.tiers import Tiers


class Target(Record):
    """A version's share, with all that a gateway needs to know of the version: it never reads ModelVersions."""

    version: VersionName
    weight: Annotated[
        int, Field(ge=0, le=10_000, description="Share in basis points. All weights of a table sum to 10,000.")
    ]
    digest: Digest
    runtime: Annotated[Runtime, Field(description="Dialect of the version's engine.")] = Runtime.TIDEWHEEL
    port: Annotated[int, Field(ge=1, le=65_535, description="Port of the version's engine.")] = 8000
    max_model_len: Annotated[int, Field(ge=16, description="Longest prompt plus reply of the version, in tokens.")] = (
        2048
    )
    slo: Annotated[Slo, Field(description="What the version promises its users.")] = Slo()


class Cause(Record):
    """Who wrote this split, and why."""

    actor: Annotated[
        str,
        Field(
            min_length=1,
            max_length=256,
            description="Who: tidewheel-operator, or the person's name as the API server knows it.",
        ),
    ]
    reason: Annotated[
        str, Field(min_length=1, max_length=64, description="One CamelCase word: RuleApplied, Rollback, ...")
    ]
    message: Annotated[str, Field(max_length=1024, description="One sentence for people.")] = ""
    at: Timestamp
    rollout_id: Annotated[
        str | None, Field(max_length=64, description="The rollout that this split is part of, where it is.")
    ] = None
    step: Annotated[int | None, Field(ge=0, description="The rollout's step, counted from 1.")] = None


class Control(Record):
    """What a person asked for. It holds for the rollout that it names, and for no other."""

    rollout_id: Annotated[
        str, Field(min_length=1, max_length=64, description="status.rollout.id of the rollout that this is for.")
    ]
    paused: Annotated[bool | None, Field(description="Weight and clock stand still; a breach still rolls back.")] = None
    no_rollback: Annotated[
        bool | None, Field(description="With paused: a breach does not roll back either. A loud choice.")
    ] = None
    promote_step: Annotated[
        int | None,
        Field(ge=1, le=64, description="Step, counted from 1, to go to without waiting for the judge."),
    ] = None
    retry_digest: Annotated[
        str | None, Field(max_length=71, description="A rejected digest to judge once more, in a new rollout.")
    ] = None
    actor: Annotated[str, Field(max_length=256, description="Who asked, as the API server knows the person.")] = ""
    at: Timestamp


class Rejection(Record):
    """A digest that is not tried again until it changes or a person retries it."""

    digest: Digest
    version: VersionName
    reason: Annotated[str, Field(max_length=1024, description="Why, in a sentence.")]
    at: Timestamp


class KeepWarm(Target):
    """A rollback target whose replicas stay, with what gateways knew of it: `kubectl rollback --to` needs no more."""

    weight: Annotated[
        int, Field(ge=0, le=10_000, description="Share it had, in basis points: its replicas are kept for that.")
    ]
    until: Timestamp


class Relief(Record):
    """When replicas on their way are expected to carry demand again."""

    p50: Annotated[Timestamp, Field(description="As likely before as after.")]
    p90: Annotated[Timestamp, Field(description="In nine of ten cases by then.")]


class RoutingTableSpec(Record):
    """The split in force for one model in one namespace."""

    model: ModelName
    targets: Annotated[
        list[Target],
        Field(
            min_length=1,
            max_length=9,
            description="The split in force, in basis points that sum to 10,000.",
            json_schema_extra=list_map("version"),
        ),
    ]
    previous: Annotated[
        list[Target],
        Field(
            max_length=9,
            description="The split before this one; what `kubectl rollback` returns to.",
            json_schema_extra=list_map("version"),
        ),
    ] = []
    rule_uid: Annotated[
        str | None, Field(max_length=64, description="uid of the RoutingRule that this table has answered.")
    ] = None
    rule_generation: Annotated[
        int | None, Field(ge=0, description="Generation of that rule that this table has answered.")
    ] = None
    salt: Annotated[
        str,
        Field(
            max_length=64,
            description="Salt of the conversation hash; constant while shares move between the same versions.",
        ),
    ] = ""
    cause: Cause
    control: Annotated[
        Control | None, Field(description="What a person asked for with `tidewheel pause|resume|promote|retry`.")
    ] = None
    rejected: Annotated[
        list[Rejection],
        Field(max_length=32, description="Digests that are not tried again until they change or a person retries."),
    ] = []
    keep_warm: Annotated[list[KeepWarm], Field(max_length=16, description="Rollback targets whose replicas stay.")] = []
    keep_previous_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=604_800,
            description="Copy of the rule's rollout.keepPreviousSeconds: how many seconds versions that lose weight "
            "stay warm, and this table outlives its rule.",
        ),
    ] = 900
    orphaned_at: Annotated[
        Timestamp | None,
        Field(description="When the operator first saw that the rule is gone; absent while there is a rule."),
    ] = None
    tiers: Annotated[Tiers | None, Field(description="Copy of the rule's tiers.")] = None
    rung: Annotated[
        int,
        Field(
            ge=0,
            le=5,
            description="Degradation ladder, each rung with those below: 1 background work is paused, 2 replies of "
            "free users are shorter, 3 a smaller model answers free users, 4 requests queue, 5 free users are refused.",
        ),
    ] = 0
    relief: Annotated[
        Relief | None,
        Field(
            description="With a rung above 0: when replicas on their way are expected to carry demand again; absent "
            "where that is not known. Gateways tell those whom they refuse."
        ),
    ] = None
