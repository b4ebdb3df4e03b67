"""The whole plan for one model: its table, its versions, what is left of versions that are gone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tidewheel.autoscaler.replicas import VersionNeeds, share_size, wanted_replicas
from tidewheel.autoscaler.version_plan import LoadPlan
from tidewheel.crds.modelversion import ModelVersionStatus
from tidewheel.crds.names import BasisPoints
from tidewheel.crds.routingrule import RoutingRuleStatus
from tidewheel.operator.planning.actions import Action, Chain
from tidewheel.operator.planning.finalizer import plan_finalizer, release_all
from tidewheel.operator.planning.labels import digest_label
from tidewheel.operator.planning.pool import PoolPlan, PoolSettings, plan_pool, plan_retirement
from tidewheel.operator.planning.records import Picture, PodRecord, RuleRecord, VersionRecord
from tidewheel.operator.planning.rollouts.settings import DEFAULTS, RolloutDefaults, replaces
from tidewheel.operator.planning.routing import plan_routing
from tidewheel.operator.planning.routing_plan import Capacity, RoutingPlan
from tidewheel.operator.planning.rule_status import rule_status
from tidewheel.operator.planning.service import plan_service, plan_service_removal
from tidewheel.operator.planning.split import shares
from tidewheel.operator.planning.verdicts import Finding
from tidewheel.operator.planning.version_status import VersionOutlook, version_status
from tidewheel.operator.planning.warmth import warm_weights
from tidewheel.operator.scaling.placement import departures, placed
from tidewheel.operator.scaling.rung import with_rung

TABLE = "table"
ORPHAN_DRAIN_SECONDS = 600
"""Drain time of pods whose ModelVersion, and with it drain.timeoutSeconds, is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """What to do now, whose load to ask, when to look again, and what the statuses build on."""

    chains: tuple[Chain, ...]
    polled: tuple[PodRecord, ...] = ()
    wake_at: tuple[datetime, ...] = ()
    routing: RoutingPlan
    outlooks: Mapping[str, VersionOutlook]


def plan_model(
    picture: Picture, *, settings: PoolSettings, new_salt: str, rollouts: RolloutDefaults = DEFAULTS
) -> ModelPlan:
    """Plan from the full picture. Only deletions happen in a namespace that is being deleted."""
    routing = plan_routing(picture, capacity=_capacity(picture, settings), new_salt=new_salt, rollouts=rollouts)
    routing = with_rung(routing, picture)
    if picture.namespace_terminating:
        chains = tuple(release_all(picture.versions.values()))
        return ModelPlan(chains=chains, routing=routing, outlooks={})
    chains_list = [Chain(TABLE, tuple(action for action in (routing.action, _save(routing)) if action is not None))]
    outlooks: dict[str, VersionOutlook] = {}
    pools: list[PoolPlan] = []
    for name, version in sorted(picture.versions.items()):
        outlooks[name] = outlook = _outlook(version, picture, routing)
        actions, pool = _plan_version(version, outlook, picture, settings)
        pools.append(pool)
        chains_list.append(Chain(name, actions))
    for name in sorted({pod.version for pod in picture.pods} | set(picture.services)):
        if name not in picture.versions:
            actions, pool = _plan_gone(name, picture, settings)
            pools.append(pool)
            chains_list.append(Chain(name, actions))
    return ModelPlan(
        chains=tuple(chain for chain in chains_list if chain.actions),
        polled=tuple(pod for pool in pools for pod in pool.polled),
        wake_at=(*routing.wake_at, *(moment for pool in pools for moment in pool.wake_at)),
        routing=routing,
        outlooks=outlooks,
    )


def plan_version_status(
    version: VersionRecord, plan: ModelPlan, picture: Picture, failures: Mapping[str, Finding]
) -> ModelVersionStatus:
    """The status of one version, given what the API server refused us (by chain)."""
    outlook = plan.outlooks[version.version]
    if failure := failures.get(version.version):
        outlook = replace(outlook, failure=failure)
    return version_status(version, outlook, picture)


def plan_rule_status(
    rule: RuleRecord, plan: ModelPlan, picture: Picture, failures: Mapping[str, Finding]
) -> RoutingRuleStatus | None:
    """The status of the rule; None while it is being deleted."""
    if plan.routing.verdict is None:
        return None
    return rule_status(rule, plan.routing.verdict, picture, failure=failures.get(TABLE))


def _save(routing: RoutingPlan) -> Action | None:
    """A rollout's progress, after the table has it: what is lost in between is found in the table."""
    return routing.rollout.save if routing.rollout is not None else None


def _needs(
    version: VersionRecord,
    picture: Picture,
    growing: Mapping[str, BasisPoints],
    *,
    keeps_base: bool = False,
    running: bool = False,
) -> VersionNeeds:
    spec = version.spec
    table = picture.table.spec if picture.table else None
    rule = picture.rule.spec if picture.rule and not picture.rule.meta.deleting else None
    label = digest_label(version.digest)
    share = max(shares(picture.table).get(version.version, 0), growing.get(version.version, 0))
    return VersionNeeds(
        # Once the rollout is over, what carries traffic has its full size; what carries none still makes room.
        replaced=rule is not None and replaces(rule) and (running or not share),
        replicas=spec.replicas if spec else None,
        min_replicas=spec.scaling.min_replicas if spec and spec.scaling else None,
        max_replicas=spec.scaling.max_replicas if spec and spec.scaling else None,
        weight=shares(picture.table).get(version.version, 0),
        growing_to=growing.get(version.version, 0),
        warm_weight=warm_weights(table, picture.now).get(version.version, 0) if table else 0,
        named=rule is not None and any(target.version == version.version for target in rule.traffic),
        move_pending=bool(growing) or keeps_base,
        present=sum(pod.is_live and pod.digest_label == label for pod in picture.pods_of(version.version)),
        load=_load(version, picture),
    )


def _load(version: VersionRecord, picture: Picture) -> LoadPlan | None:
    """What demand asks for; nothing until it has once been known: a size is never guessed from silence."""
    if picture.advice is None or version.spec is None or version.spec.scaling is None:
        return None
    found = picture.advice.versions.get(version.version)
    return found.load if found is not None else None


def _capacity(picture: Picture, settings: PoolSettings) -> Callable[[VersionRecord, BasisPoints], Capacity]:
    """Replicas count once they have been ready for so long that gateways know them."""
    known_after = timedelta(seconds=settings.min_ready_seconds)

    def capacity(version: VersionRecord, share: BasisPoints) -> Capacity:
        label = digest_label(version.digest)
        serving = [pod for pod in picture.pods_of(version.version) if pod.is_serving and pod.digest_label == label]
        known_at = [pod.ready_since + known_after if pod.ready_since else picture.now for pod in serving]
        return Capacity(
            ready=sum(moment <= picture.now for moment in known_at),
            needed=share_size(_needs(version, picture, {}), share),
            next_at=tuple(moment for moment in known_at if moment > picture.now),
        )

    return capacity


def _outlook(version: VersionRecord, picture: Picture, routing: RoutingPlan) -> VersionOutlook:
    keeps_base = routing.rollout is not None and routing.rollout.keeps_base
    running = routing.rollout is not None and routing.rollout.is_running
    needs = _needs(version, picture, routing.growing, keeps_base=keeps_base, running=running)
    weights = shares(picture.table)
    in_service = bool(needs.weight or needs.warm_weight)
    if version.meta.deleting and not in_service:
        desired, reason = 0, "deleted"
    else:
        count = wanted_replicas(needs)
        desired, reason = count.count, count.reason
    return VersionOutlook(
        desired=desired,
        reason=reason,
        weight=needs.weight,
        leading=needs.weight == max(weights.values(), default=0),
        in_service=in_service,
    )


def _plan_version(
    version: VersionRecord, outlook: VersionOutlook, picture: Picture, settings: PoolSettings
) -> tuple[tuple[Action, ...], PoolPlan]:
    pods = picture.pods_of(version.version)
    if version.spec is None:
        return plan_finalizer(version, in_service=True, pods=pods, has_service=True), PoolPlan()
    label = digest_label(version.digest)
    others = [pod for pod in pods if pod.digest_label != label]
    mine_serve = any(pod.is_serving for pod in pods if pod.digest_label == label)
    old_serving = next((pod.digest_label for pod in others if pod.is_serving), None)
    keep_old = old_serving is not None and not mine_serve and bool(outlook.weight)
    service = picture.services.get(version.version)
    pool = plan_pool(
        version,
        pods=pods,
        desired=outlook.desired,
        reason=outlook.reason,
        loads=picture.loads,
        now=picture.now,
        settings=settings,
    )
    retired = PoolPlan()
    if not keep_old:
        retired = plan_retirement(
            others,
            reason=f"{version.meta.name} was re-created with another spec",
            loads=picture.loads,
            now=picture.now,
            settings=settings,
            timeout_seconds=version.spec.drain.timeout_seconds,
        )
    leaving = version.meta.deleting is not None and not outlook.in_service and all(pod.is_terminating for pod in pods)
    actions = (
        *plan_finalizer(version, in_service=not leaving, pods=pods, has_service=service is not None),
        *plan_service(version, service, digest=old_serving if keep_old and old_serving else label, leaving=leaving),
        *departures(pods, picture.advice.leaving_nodes if picture.advice else frozenset()),
        *placed(pool.actions, version, pods),
        *retired.actions,
    )
    return actions, PoolPlan(polled=(*pool.polled, *retired.polled), wake_at=(*pool.wake_at, *retired.wake_at))


def _plan_gone(name: str, picture: Picture, settings: PoolSettings) -> tuple[tuple[Action, ...], PoolPlan]:
    """Pods and Service of a version whose ModelVersion is gone: they stay while it carries weight or is kept warm."""
    table = picture.table.spec if picture.table else None
    if shares(picture.table).get(name, 0) or (table and name in warm_weights(table, picture.now)):
        return (), PoolPlan()
    pods = picture.pods_of(name)
    pool = plan_retirement(
        pods,
        reason=f"ModelVersion {picture.key.model}-{name} is gone and takes no traffic",
        loads=picture.loads,
        now=picture.now,
        settings=settings,
        timeout_seconds=ORPHAN_DRAIN_SECONDS,
    )
    service = picture.services.get(name)
    removal = plan_service_removal(service) if service is not None and all(p.is_terminating for p in pods) else ()
    return (*pool.actions, *removal), pool
