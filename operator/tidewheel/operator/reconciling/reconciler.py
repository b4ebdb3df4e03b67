"""One reconcile of one model: plan from the cache; before anything disruptive, plan again from live reads."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from tidewheel.clients.errors import ApiError, Conflict, Forbidden, NotFound, ServerUnavailable
from tidewheel.clients.kubernetes import KubeClient
from tidewheel.clients.resources import MODEL_VERSIONS, ROUTING_RULES, Resource
from tidewheel.crds.conditions import Condition
from tidewheel.crds.modelversion import ModelVersionStatus
from tidewheel.crds.routingrule import RoutingRuleStatus
from tidewheel.operator.errors import LeadershipLost, NotOurs
from tidewheel.operator.parsing import PARSERS
from tidewheel.operator.planning.model import ModelPlan, plan_model, plan_rule_status, plan_version_status
from tidewheel.operator.planning.pool import PoolSettings
from tidewheel.operator.planning.records import Meta, ModelKey, Picture
from tidewheel.operator.planning.rollouts.settings import DEFAULTS, RolloutDefaults
from tidewheel.operator.planning.verdicts import Finding
from tidewheel.operator.reconciling.executor import FIELD_MANAGER, Executor
from tidewheel.operator.reconciling.loads import LoadMonitor
from tidewheel.operator.reconciling.observer import Observer
from tidewheel.operator.rollouts.desk import RolloutDesk
from tidewheel.operator.watching.cache import Cache

_LOG: Final = logging.getLogger(__name__)
ROUNDS: Final = 6
"""Plans until nothing is left to do; a model that needs more is looked at again right away."""
REFUSED_RETRY_SECONDS: Final = 5.0

StatusChange = Callable[[Resource, Meta, Iterable[Condition], Iterable[Condition]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """When to look again: ``failed`` by back-off, of at least ``at_least_seconds``; else in ``wake_seconds``."""

    failed: str = ""
    at_least_seconds: float = 0.0
    wake_seconds: float | None = None


class Reconciler:
    """Brings one model at a time to what its objects say."""

    def __init__(
        self,
        client: KubeClient,
        cache: Cache,
        *,
        executor: Executor,
        loads: LoadMonitor,
        rollouts: RolloutDesk,
        settings: PoolSettings,
        rollout_defaults: RolloutDefaults = DEFAULTS,
        may_write: Callable[[], bool],
        now: Callable[[], datetime],
        new_salt: Callable[[], str],
        on_status: StatusChange,
    ) -> None:
        self._client = client
        self._cache = cache
        self._observer = Observer(client, cache)
        self._executor = executor
        self._loads = loads
        self._rollouts = rollouts
        self._settings = settings
        self._rollout_defaults = rollout_defaults
        self._may_write = may_write
        self._now = now
        self._new_salt = new_salt
        self._on_status = on_status

    async def reconcile(self, key: ModelKey) -> Outcome:
        """Raises LeadershipLost; whatever the API server refuses is in the outcome, and in a status if it can be."""
        failures: Mapping[str, ApiError | NotOurs] = {}
        settled = False
        for _ in range(ROUNDS):
            picture = self._picture(key)
            plan = self._plan(picture)
            if any(action.disruptive for chain in plan.chains for action in chain.actions):
                try:
                    live = await self._observer.observe(key, now=self._now(), loads=self._loads.readings)
                    picture = replace(live, evidence=self._rollouts.evidence(key))
                except ApiError as error:
                    return Outcome(failed=str(error))
                plan = self._plan(picture)
            if not plan.chains:
                settled = True
                break
            failures = await self._executor.execute(plan.chains)
            if failures:
                break
        self._loads.follow(key, plan.polled)
        if not settled:
            picture = self._picture(key)
            plan = self._plan(picture)
        self._rollouts.follow(key, plan.routing.rollout, exists=picture.rule is not None)
        status_error = await self._write_statuses(picture, plan, failures)
        return _outcome(picture, plan, failures, status_error, settled=settled)

    def _picture(self, key: ModelKey) -> Picture:
        picture = self._cache.picture(key, now=self._now(), loads=self._loads.readings)
        return replace(picture, evidence=self._rollouts.evidence(key))

    def _plan(self, picture: Picture) -> ModelPlan:
        return plan_model(picture, settings=self._settings, new_salt=self._new_salt(), rollouts=self._rollout_defaults)

    async def _write_statuses(
        self, picture: Picture, plan: ModelPlan, failures: Mapping[str, ApiError | NotOurs]
    ) -> ApiError | None:
        if picture.namespace_terminating:
            return None
        findings = {subject: finding for subject, error in failures.items() if (finding := _finding(error)) is not None}
        try:
            for version in picture.versions.values():
                wanted = plan_version_status(version, plan, picture, findings)
                await self._write_status(MODEL_VERSIONS, version.meta, version.status, wanted)
            if picture.rule is not None:
                rule_wanted = plan_rule_status(picture.rule, plan, picture, findings)
                if rule_wanted is not None:
                    present = picture.rule.status.model_copy(update={"rollout": None})
                    await self._write_status(ROUTING_RULES, picture.rule.meta, present, rule_wanted)
        except ApiError as error:
            return error
        return None

    async def _write_status(
        self,
        resource: Resource,
        meta: Meta,
        present: ModelVersionStatus | RoutingRuleStatus,
        wanted: ModelVersionStatus | RoutingRuleStatus,
    ) -> None:
        """Only if it says something else; by server-side apply, for other managers may own other conditions."""
        if present == wanted:
            return
        if not self._may_write():
            raise LeadershipLost("the Lease is not surely ours any more")
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "status": wanted.to_wire(),
        }
        try:
            found = await self._client.apply_status(resource, body, field_manager=FIELD_MANAGER, force=True)
        except NotFound:
            return
        self._cache.observe(resource, PARSERS[resource](found))
        self._on_status(resource, meta, present.conditions, wanted.conditions)


def _outcome(
    picture: Picture,
    plan: ModelPlan,
    failures: Mapping[str, ApiError | NotOurs],
    status_error: ApiError | None,
    *,
    settled: bool,
) -> Outcome:
    if failures:
        words = "; ".join(f"{subject}: {error}" for subject, error in failures.items())
        refused = any(not isinstance(error, Conflict | ServerUnavailable) for error in failures.values())
        return Outcome(failed=words, at_least_seconds=REFUSED_RETRY_SECONDS if refused else 0.0)
    if status_error is not None:
        return Outcome(failed=str(status_error))
    if not settled:
        return Outcome(wake_seconds=0.0)
    if not plan.wake_at:
        return Outcome()
    return Outcome(wake_seconds=max(0.05, (min(plan.wake_at) - picture.now).total_seconds()))


def _finding(error: ApiError | NotOurs) -> Finding | None:
    """What the status says of a refusal; a lost race or a silent server says nothing about the object."""
    if isinstance(error, NotOurs):
        return Finding("NameTaken", str(error))
    if isinstance(error, Conflict | ServerUnavailable | NotFound):
        return None
    if isinstance(error, Forbidden):
        reason = "QuotaExceeded" if "exceeded quota" in error.message else "Forbidden"
        return Finding(reason, f"the API server refused: {error.message}")
    return Finding(error.reason or "Refused", f"the API server refused: {error.message}")
