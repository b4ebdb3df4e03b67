"""``spec.rollout`` of a RoutingRule: how a new split is reached, and what is held against it on the way.

A field that is left out has the default that its description names; it is not written into the object, so that a rule
reads as it was applied. Defaults live with the planner and the judge that obey them (`tidewheel.rollout`).
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tidewheel.crds.base import Record, list_map, obeys
from tidewheel.crds.rolloutchoices import Direction, Metric, Mode, OnBlind, OnBreach, OnCapacity, Patience


class Day(StrEnum):
    """A day of the week."""

    MON = "Mon"
    TUE = "Tue"
    WED = "Wed"
    THU = "Thu"
    FRI = "Fri"
    SAT = "Sat"
    SUN = "Sun"


_WEEK = 604_800


def _seconds(description: str, *, least: int = 0, most: int = _WEEK) -> object:
    return Field(ge=least, le=most, description=description)


class RolloutStep(Record):
    """One step: how far on the way from the old split to the new one."""

    percent: Annotated[
        int | None, Field(ge=1, le=100, description="Whole percent of the way. 100 is the new split.")
    ] = None
    basis_points: Annotated[
        int | None, Field(ge=1, le=10_000, description="The same in basis points: 10 is 0.1 percent.")
    ] = None
    bake_seconds: Annotated[
        int | None, _seconds("Judged time of this step in seconds, where it is not rollout.bakeSeconds.")
    ] = None


class ChangeWindow(Record):
    """Hours in which traffic may be given to a new version. Going back never waits for them."""

    start: Annotated[
        str,
        Field(max_length=5, pattern=r"^([01]\d|2[0-3]):[0-5]\d$", description="Opens at this local time, as 09:00."),
    ]
    end: Annotated[
        str,
        Field(
            max_length=5,
            pattern=r"^([01]\d|2[0-3]):[0-5]\d$",
            description="Closes at this local time, as 17:30; at or before the start it is the next day's.",
        ),
    ]
    time_zone: Annotated[
        str | None, Field(max_length=64, description="IANA name of the time zone, as Europe/Berlin. Default: UTC.")
    ] = None
    days: Annotated[
        list[Day], Field(max_length=7, description="Days on which the window starts. Default: every day.")
    ] = []


class CustomMetric(Record):
    """A metric of your own: PromQL that gives one number per version."""

    name: Annotated[str, Field(min_length=1, max_length=63, description="Name in status, Events and the ledger.")]
    query: Annotated[
        str,
        Field(
            min_length=1,
            max_length=2048,
            description="PromQL with {{version}} where the version's label goes, for example "
            'sum(rate(refusals_total{version="{{version}}"}[1m])).',
            json_schema_extra=obeys(
                "self.contains('{{version}}')",
                "must contain {{version}} where the version's label goes, or both versions would read the same number",
            ),
        ),
    ]
    limit: Annotated[float, Field(description="The value that must not be passed.")]
    direction: Annotated[
        Direction | None, Field(description="Which way the metric gets worse. Default: HigherIsWorse.")
    ] = None
    relative_to_base: Annotated[
        bool | None, Field(description="The limit is a ratio to the base's value. Default: false.")
    ] = None
    dry_run: Annotated[bool | None, Field(description="Computed and recorded, never acted on. Default: true.")] = None


class Judge(Record):
    """What is held against a new version, and how sure one must be to act on it. Its own slo counts too."""

    mode: Annotated[
        Mode | None,
        Field(
            description="evidence acts on limits only with evidence that stays valid however often one looks; limits "
            "is the literal rule set over windowSeconds, without control of chance; observe computes and records, and "
            "time alone advances. Default: evidence."
        ),
    ] = None
    metrics: Annotated[
        list[Metric],
        Field(
            max_length=6, description="Built-in metrics to judge. Default: all; errors, tpot-slo and tpot in limits."
        ),
    ] = []
    dry_run: Annotated[
        list[Metric], Field(max_length=6, description="Metrics that are computed and recorded but never act.")
    ] = []
    custom: Annotated[
        list[CustomMetric],
        Field(max_length=8, description="Metrics of your own.", json_schema_extra=list_map("name")),
    ] = []
    max_error_rate_increase: Annotated[
        float | None,
        Field(
            ge=0, le=1, description="Error rate of the new version above the old one's, as a fraction. Default: 0.005."
        ),
    ] = None
    max_latency_ratio: Annotated[
        float | None,
        Field(ge=1, le=100, description="Latency of the new version divided by the old one's. Default: 1.2."),
    ] = None
    max_share_over_slo: Annotated[
        float | None,
        Field(gt=0, lt=1, description="Share of requests slower than the version's own slo. Default: 0.01, the p99."),
    ] = None
    max_stall_rate_increase: Annotated[
        float | None,
        Field(
            ge=0, le=1, description="Share of replies with a pause over 2 s, above the old version's. Default: 0.005."
        ),
    ] = None
    any_quantile: Annotated[
        bool | None,
        Field(description="Hold p50, p90 and p95 to maxLatencyRatio too. Default: true, false in mode limits."),
    ] = None
    false_alarm_rate: Annotated[
        float | None,
        Field(
            gt=0,
            lt=1,
            description="Chance that a healthy version is rolled back by noise, over a whole rollout with all its "
            "metrics, steps and looks. Default: 0.01.",
        ),
    ] = None
    clear_odds: Annotated[
        float | None,
        Field(ge=1, le=1e6, description="Odds at which a step's harm counts as ruled out. Default: 20."),
    ] = None
    min_latency_blocks: Annotated[
        int | None,
        Field(ge=1, le=1000, description="Latency acts after so many blocks, unless it is gross at once. Default: 4."),
    ] = None
    block_seconds: Annotated[
        float | None,
        Field(ge=1, le=3600, description="Time between looks; at least four scrapes. Default: 30."),
    ] = None
    scrape_seconds: Annotated[
        float | None,
        Field(
            gt=0, le=300, description="How often Prometheus scrapes the gateways. Default: what the operator was told."
        ),
    ] = None
    settle_scrapes: Annotated[
        int | None,
        Field(ge=0, le=100, description="Scrapes after a confirmed weight that are not looked at. Default: 2."),
    ] = None
    max_age_scrapes: Annotated[
        int | None, Field(ge=1, le=100, description="Scrapes after which a sample is too old to judge. Default: 2.")
    ] = None
    max_clock_skew: Annotated[
        float | None,
        Field(gt=0, le=300, description="Seconds that the clocks of operator and Prometheus may differ. Default: 5."),
    ] = None
    replica_spread: Annotated[
        float | None,
        Field(
            ge=0, le=1, description="How much replicas of one version differ in latency, as a fraction. Default: 0.05."
        ),
    ] = None
    cache_warm_seconds: Annotated[
        float | None,
        Field(ge=0, le=86_400, description="TTFT counts from so long after the first weight. Default: 300."),
    ] = None
    load_ratio: Annotated[
        list[Annotated[float, Field(gt=0, le=100)]],
        Field(
            max_length=2,
            description="Requests in flight per replica, new by old, inside which latencies are compared in full. "
            "Default: [0.7, 1.4].",
            json_schema_extra=obeys(
                "self.size() == 0 || (self.size() == 2 && self[0] < self[1])", "must be two numbers, the lower first"
            ),
        ),
    ] = []
    gross_latency_ratio: Annotated[
        float | None,
        Field(ge=1, le=100, description="Latency ratio that a difference in load cannot explain. Default: 2."),
    ] = None
    share_tolerance: Annotated[
        float | None,
        Field(
            ge=1, le=100, description="Ratio by which the share that arrives may stray from the weight. Default: 1.5."
        ),
    ] = None
    share_slack: Annotated[
        float | None, Field(ge=0, le=1, description="And by this share of traffic. Default: 0.02.")
    ] = None
    mix_tolerance: Annotated[
        float | None,
        Field(ge=1, le=100, description="Ratio by which shares of long prompts may differ. Default: 1.5."),
    ] = None
    window_seconds: Annotated[
        float | None, Field(ge=1, le=86_400, description="Mode limits: how far back a look reaches. Default: 300.")
    ] = None
    crossings: Annotated[
        int | None,
        Field(ge=1, le=1000, description="Mode limits: looks in a row over a limit that roll back. Default: 1."),
    ] = None
    min_samples: Annotated[
        int | None,
        Field(ge=0, le=10_000_000, description="Mode limits: requests below which nothing is judged. Default: 0."),
    ] = None


class Quality(Record):
    """Shadow prompts: before the first weight both versions answer a fixed set of prompts, greedily."""

    prompts: Annotated[
        str | None,
        Field(
            max_length=253,
            description="ConfigMap of this namespace with a prompt set under the key prompts, one JSON object per "
            "line. Default: a small built-in set.",
        ),
    ] = None
    on_breach: Annotated[
        OnBreach | None,
        Field(
            description="What follows when answers are evidently worse: hold waits for a person, rollback rejects the "
            "version. Default: hold."
        ),
    ] = None
    max_refusal_increase: Annotated[
        float | None,
        Field(ge=0, le=1, description="Share of refused prompts above the old version's. Default: 0.05."),
    ] = None
    max_loop_increase: Annotated[
        float | None,
        Field(ge=0, le=1, description="Share of answers that end in a loop, above the old version's. Default: 0.02."),
    ] = None
    max_schema_loss: Annotated[
        float | None,
        Field(ge=0, le=1, description="Share of answers of the wrong shape above the old version's. Default: 0.05."),
    ] = None
    max_error_increase: Annotated[
        float | None,
        Field(ge=0, le=1, description="Share of prompts without any answer above the old version's. Default: 0."),
    ] = None
    max_length_ratio: Annotated[
        float | None,
        Field(gt=1, le=100, description="Ratio of answer lengths, either way, on average. Default: 1.5."),
    ] = None
    min_agreement: Annotated[
        float | None,
        Field(ge=0, le=1, description="Mean likeness of the answers to the old version's. Default: recorded only."),
    ] = None
    max_p_value: Annotated[
        float | None,
        Field(gt=0, lt=1, description="Chance below which a passed limit is evident (paired test). Default: 0.05."),
    ] = None
    max_tokens: Annotated[
        int | None, Field(ge=1, le=4096, description="Longest answer that is asked for, in tokens. Default: 128.")
    ] = None


class Rollout(Record):
    """How a new split is reached."""

    keep_previous_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=_WEEK,
            description="Seconds that versions of the previous split stay warm for an instant rollback, and that the "
            "split in force outlives a deleted rule.",
        ),
    ] = 900
    steps: Annotated[
        list[RolloutStep],
        Field(
            max_length=20,
            description="Steps of the way from the split in force to spec.traffic; each is held until the judge clears "
            "it. Without steps traffic moves at once, as soon as there are replicas for it.",
        ),
    ] = []
    bake_seconds: Annotated[int | None, _seconds("Judged time of each step in seconds. Default: 600.")] = None
    judge: Annotated[Judge | None, Field(description="What is held against the new version.")] = None
    on_capacity: Annotated[
        OnCapacity | None,
        Field(
            description="Where both versions do not fit: Surge keeps the old one at full size and refuses; Replace "
            "shrinks it to what its share needs as the new one grows replica by replica, keeps nothing warm, leaves a "
            "version without traffic no replicas, and gives up instant rollback. Default: Surge."
        ),
    ] = None
    max_hold_seconds: Annotated[
        int | None,
        _seconds("Seconds that a step is held for want of data before onThin or onBlind counts. Default: 7200."),
    ] = None
    on_thin: Annotated[
        Patience | None, Field(description="What follows when there was too little data for so long. Default: hold.")
    ] = None
    on_blind: Annotated[
        OnBlind | None, Field(description="What follows when nothing could be judged for so long. Default: hold.")
    ] = None
    on_base_down: Annotated[
        Patience | None,
        Field(
            description="What follows when the old version has no ready replica left and the new one has: advance "
            "gives it all traffic. Default: advance."
        ),
    ] = None
    base_down_seconds: Annotated[
        int | None, _seconds("So many seconds the old version must be without replicas before that. Default: 30.")
    ] = None
    blind_alert_seconds: Annotated[
        int | None, _seconds("Without anything to judge for so many seconds, the rule is Degraded. Default: 120.")
    ] = None
    capacity_deadline_seconds: Annotated[
        int | None, _seconds("Waiting for replicas for so many seconds, the rule is Stalled. Default: 1200.")
    ] = None
    confirm_seconds: Annotated[
        int | None, _seconds("A gateway that does not confirm a weight for so many seconds is named. Default: 30.")
    ] = None
    verdict_max_age_seconds: Annotated[
        int | None, _seconds("A verdict older than so many seconds advances nothing. Default: 120.", least=1)
    ] = None
    tick_seconds: Annotated[
        int | None, _seconds("Seconds between looks at a rollout under way. Default: 5.", least=1, most=3600)
    ] = None
    change_windows: Annotated[
        list[ChangeWindow],
        Field(max_length=16, description="Hours in which traffic may be given to a new version. Default: always."),
    ] = []
    quality: Annotated[
        Quality | None,
        Field(description="Shadow prompts that the new version must pass before it gets users. Default: none."),
    ] = None
