"""``status.rollout`` of a RoutingRule: the progress of a rollout, for people, and for an operator that starts again."""

from typing import Annotated

from pydantic import Field

from tidewheel.crds.base import Digest, Record, Timestamp, VersionName, list_map

_Share = Annotated[int, Field(ge=0, le=10_000, description="Share in basis points.")]
_Split = dict[str, _Share]


class LastGood(Record):
    """The version that last completed a rollout."""

    version: VersionName
    digest: Digest


class PastRollout(Record):
    """One rollout that is over."""

    id: Annotated[str, Field(max_length=64, description="Its id.")]
    outcome: Annotated[str, Field(max_length=32, description="How it ended, such as Promoted or Rejected.")]
    message: Annotated[str, Field(max_length=2048, description="Why, in a sentence.")]
    finished_at: Timestamp


class MetricStatus(Record):
    """How one metric stands in this step."""

    name: Annotated[
        str, Field(max_length=63, description="errors, tpot-slo, tpot, ttft-slo, ttft, stalls or your own.")
    ]
    standing: Annotated[str, Field(max_length=16, description="ok, thin, watch, both over or breach.")]
    canary: Annotated[float | None, Field(description="Value of the new version; a rate, or seconds.")] = None
    base: Annotated[float | None, Field(description="Value of the old version.")] = None
    estimate: Annotated[float | None, Field(description="What is held against the limit.")] = None
    limit: Annotated[float | None, Field(description="What would trip it, given evidence.")] = None
    canary_samples: Annotated[int | None, Field(ge=0, description="Requests of the new version in this step.")] = None
    base_samples: Annotated[int | None, Field(ge=0, description="Requests of the old version in this step.")] = None
    evidence: Annotated[str | None, Field(max_length=32, description="Odds against chance, such as 310:1.")] = None
    needed: Annotated[str | None, Field(max_length=32, description="Odds at which it acts.")] = None
    ruled_out: Annotated[
        str | None, Field(max_length=32, description="Odds that the harm this step must rule out is not there.")
    ] = None
    dry_run: Annotated[bool | None, Field(description="Computed and recorded, never acted on.")] = None
    message: Annotated[str | None, Field(max_length=1024, description="The numbers in words.")] = None


class RolloutStatus(Record):
    """One rollout: running, or the last one. ``step`` counts from 0; ``progress`` is for people."""

    id: Annotated[str, Field(max_length=64, description="Fresh for each rollout; what a person asks for names it.")]
    phase: Annotated[
        str,
        Field(max_length=32, description="WaitingForWindow, WaitingForCapacity, Confirming, Baking or Finished."),
    ]
    outcome: Annotated[
        str | None,
        Field(max_length=32, description="Promoted, FastPromoted, Rejected, RolledBack, Superseded or Aborted."),
    ] = None
    progress: Annotated[
        str | None, Field(max_length=64, description="Step of steps, such as 2/5; the outcome once it is over.")
    ] = None
    suspended: Annotated[bool | None, Field(description="It waits for a person.")] = None
    verdict: Annotated[
        str | None, Field(max_length=16, description="BLIND, BREACH, SKEWED, SUSPECT, CLEAR or THIN, as judged last.")
    ] = None
    reason: Annotated[str | None, Field(max_length=64, description="One CamelCase word.")] = None
    message: Annotated[str | None, Field(max_length=4096, description="What is so, in a sentence or two.")] = None
    start: Annotated[
        _Split | None, Field(alias="from", max_length=9, description="Split it began with, in basis points.")
    ] = None
    goal: Annotated[_Split | None, Field(alias="to", max_length=9, description="Split it leads to.")] = None
    split: Annotated[_Split | None, Field(max_length=9, description="Split of the present step.")] = None
    base: Annotated[str | None, Field(max_length=20, description="The old version.")] = None
    canary: Annotated[str | None, Field(max_length=20, description="The new version.")] = None
    canary_digest: Annotated[str | None, Field(max_length=71, description="Digest of the new version.")] = None
    step: Annotated[int | None, Field(ge=0, description="The present step, counted from 0.")] = None
    steps: Annotated[int | None, Field(ge=0, description="How many there are.")] = None
    judged: Annotated[bool | None, Field(description="Whether there is something to compare with in this step.")] = None
    canary_share: Annotated[float | None, Field(ge=0, le=1, description="Of the traffic of both versions.")] = None
    canary_replicas: Annotated[
        int | None, Field(ge=0, description="Replicas of the new version when its weight was confirmed.")
    ] = None
    table_generation: Annotated[
        int | None, Field(ge=0, description="Generation of the RoutingTable when it started.")
    ] = None
    weight_generation: Annotated[
        int | None, Field(ge=0, description="Generation of the RoutingTable that gateways must confirm.")
    ] = None
    bake_seconds: Annotated[float | None, Field(ge=0, description="Judged time that the step needs.")] = None
    baked_seconds: Annotated[float | None, Field(ge=0, description="Judged time that it has.")] = None
    started_at: Timestamp | None = None
    phase_since: Timestamp | None = None
    step_started_at: Timestamp | None = None
    first_weight_at: Timestamp | None = None
    confirmed_at: Timestamp | None = None
    credited_until: Timestamp | None = None
    held_since: Timestamp | None = None
    base_down_since: Timestamp | None = None
    finished_at: Timestamp | None = None
    earliest_at: Annotated[
        Timestamp | None, Field(description="When the step can end at the earliest, should the judge clear it.")
    ] = None
    judged_at: Annotated[Timestamp | None, Field(description="Instant of the last verdict's data.")] = None
    promoted_by: Annotated[str | None, Field(max_length=256, description="Who skipped the judge.")] = None
    dropped_verdicts: Annotated[
        int | None, Field(ge=0, description="Verdicts that came too late, for an earlier step.")
    ] = None
    quality: Annotated[
        str | None, Field(max_length=16, description="What the shadow prompts said: CLEAR, SUSPECT, BREACH or BLIND.")
    ] = None
    quality_message: Annotated[
        str | None, Field(max_length=1024, description="The same in a sentence; answers are in a ConfigMap.")
    ] = None
    observed_share: Annotated[
        float | None,
        Field(ge=0, le=1, description="Share of both versions' requests that the new one got in this step."),
    ] = None
    metrics: Annotated[
        list[MetricStatus],
        Field(max_length=16, description="How each metric stands.", json_schema_extra=list_map("name")),
    ] = []
    report: Annotated[
        list[Annotated[str, Field(max_length=1024)]],
        Field(max_length=32, description="The last verdict as `tidewheel why` shows it."),
    ] = []
    plan: Annotated[
        list[Annotated[str, Field(max_length=1024)]],
        Field(max_length=48, description="What each step can detect at this traffic, and what it costs."),
    ] = []
    last_good: Annotated[LastGood | None, Field(description="The version that last completed a rollout.")] = None
    history: Annotated[
        list[PastRollout], Field(max_length=10, description="Rollouts that are over, newest first.")
    ] = []
