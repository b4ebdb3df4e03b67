"""Carries out actions, one API call each. Every result goes into the cache, so that the next plan sees it."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from tidewheel.clients.errors import AlreadyExists, ApiError, NotFound
from tidewheel.clients.kubernetes import KubeClient
from tidewheel.clients.resources import (
    MODEL_VERSIONS,
    PODS,
    ROUTING_RULES,
    ROUTING_TABLES,
    SERVICES,
    KubeObject,
    Resource,
)
from tidewheel.crds.names import DIGEST_LABEL, IN_SERVICE_FINALIZER, SERVING_GATE, UID_LABEL
from tidewheel.operator.errors import LeadershipLost, NotOurs
from tidewheel.operator.moments import format_moment
from tidewheel.operator.parsing import PARSERS
from tidewheel.operator.planning.actions import (
    Action,
    AddFinalizer,
    AdoptPod,
    ApplyService,
    Chain,
    CreatePod,
    DeletePod,
    DeleteService,
    DeleteTable,
    OpenGate,
    RemoveFinalizer,
    SaveRollout,
    StartDrain,
    WriteTable,
)
from tidewheel.operator.planning.records import Meta, PodRecord
from tidewheel.operator.planning.service import is_ours
from tidewheel.operator.watching.cache import Cache

_LOG: Final = logging.getLogger(__name__)
FIELD_MANAGER: Final = "tidewheel-operator"
ROLLOUT_MANAGER: Final = "tidewheel-rollout"
"""Of what only rollouts write: their progress and their ledger."""


class Executor:
    """Does what a plan says. ``may_write`` is asked before each call; ``on_done`` hears of each success."""

    def __init__(
        self,
        client: KubeClient,
        cache: Cache,
        *,
        may_write: Callable[[], bool],
        now: Callable[[], datetime],
        on_done: Callable[[Action], None],
    ) -> None:
        self._client = client
        self._cache = cache
        self._may_write = may_write
        self._now = now
        self._on_done = on_done

    async def execute(self, chains: Sequence[Chain]) -> Mapping[str, ApiError | NotOurs]:
        """All chains, each up to its first failure; the failures by subject. Raises LeadershipLost."""
        failures: dict[str, ApiError | NotOurs] = {}
        for chain in chains:
            try:
                await self._run(chain.actions)
            except (ApiError, NotOurs) as error:
                failures[chain.subject] = error
        return failures

    async def _run(self, actions: Sequence[Action]) -> None:
        """In order; pods are created in batches of 1, 2, 4, ..., so that a quota refuses one call and not a hundred."""
        batch_size, position = 1, 0
        while position < len(actions):
            if not isinstance(actions[position], CreatePod):
                await self._do(actions[position])
                position += 1
                continue
            end = position
            while end < min(len(actions), position + batch_size) and isinstance(actions[end], CreatePod):
                end += 1
            results = await asyncio.gather(*map(self._do, actions[position:end]), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            batch_size, position = batch_size * 2, end

    async def _do(self, action: Action) -> None:
        if not self._may_write():
            raise LeadershipLost("the Lease is not surely ours any more")
        await self._call(action)
        _LOG.info(action.message, extra={"action": type(action).__name__})
        self._on_done(action)

    async def _call(self, action: Action) -> None:
        match action:
            case CreatePod():
                await self._create_pod(action.manifest)
            case OpenGate():
                await self._set_gate(action.pod, open_=True)
            case StartDrain():
                await self._set_gate(action.pod, open_=False)
            case DeletePod():
                await self._delete_pod(action.pod, action.grace_seconds)
            case AdoptPod():
                labels = {"metadata": {**_precondition(action.pod.meta), "labels": action.labels}}
                await self._patch(PODS, action.pod.meta, labels)
            case ApplyService():
                await self._apply_service(action.manifest)
            case DeleteService():
                await self._delete(SERVICES, action.service.meta)
            case AddFinalizer() | RemoveFinalizer():
                kept = [name for name in action.version.meta.finalizers if name != IN_SERVICE_FINALIZER]
                held = [IN_SERVICE_FINALIZER] if isinstance(action, AddFinalizer) else []
                await self._set_finalizers(action.version.meta, (*kept, *held))
            case WriteTable():
                await self._write_table(action)
            case DeleteTable():
                await self._delete(ROUTING_TABLES, action.table.meta)
            case SaveRollout():
                await self._save_rollout(action)
            case _:
                raise TypeError(f"no way to do {type(action).__name__}")

    async def _create_pod(self, manifest: KubeObject) -> None:
        try:
            found = await self._client.create(PODS, manifest)
        except AlreadyExists:
            metadata = manifest["metadata"]
            found = await self._client.get(PODS, metadata["name"], metadata["namespace"])
            _require_ours(found, manifest, (UID_LABEL, DIGEST_LABEL))
        self._keep(PODS, found)

    async def _set_gate(self, pod: PodRecord, *, open_: bool) -> None:
        """The condition's transition time is the start of the drain: it outlives this process."""
        condition = {
            "type": SERVING_GATE,
            "status": "True" if open_ else "False",
            "reason": "Serving" if open_ else "Draining",
            "lastTransitionTime": format_moment(self._now()),
        }
        patch = {"metadata": {"uid": pod.meta.uid}, "status": {"conditions": [condition]}}
        found = await self._client.patch_strategic(PODS, pod.meta.name, pod.meta.namespace, patch, subresource="status")
        self._keep(PODS, found)

    async def _delete_pod(self, pod: PodRecord, grace_seconds: int | None) -> None:
        await self._delete(PODS, pod.meta, grace_seconds=grace_seconds)
        self._cache.observe(PODS, replace(pod, meta=replace(pod.meta, deleting=self._now())))

    async def _delete(self, resource: Resource, meta: Meta, *, grace_seconds: int | None = None) -> None:
        """Only the object that was planned for, in the state that was looked at."""
        try:
            await self._client.delete(
                resource,
                meta.name,
                meta.namespace,
                uid=meta.uid,
                resource_version=meta.resource_version,
                grace_seconds=grace_seconds,
            )
        except NotFound:
            self._cache.remove(resource, meta.namespace, meta.name)
            return
        if resource is not PODS:
            self._cache.remove(resource, meta.namespace, meta.name)

    async def _apply_service(self, manifest: KubeObject) -> None:
        """Created under its name, never taken from somebody else."""
        metadata = manifest["metadata"]
        try:
            found = await self._client.get(SERVICES, metadata["name"], metadata["namespace"])
        except NotFound:
            pass
        else:
            if not is_ours(PARSERS[SERVICES](found)):  # type: ignore[arg-type]
                raise NotOurs(
                    f"Service {metadata['name']} exists and is not Tidewheel's; delete or rename it, for the replicas "
                    "of this version are found through a Service of this name"
                )
        self._keep(SERVICES, await self._client.apply(SERVICES, manifest, field_manager=FIELD_MANAGER, force=True))

    async def _set_finalizers(self, meta: Meta, finalizers: Sequence[str]) -> None:
        patch = {"metadata": {**_precondition(meta), "finalizers": list(finalizers)}}
        try:
            await self._patch(MODEL_VERSIONS, meta, patch)
        except NotFound:
            self._cache.remove(MODEL_VERSIONS, meta.namespace, meta.name)

    async def _write_table(self, action: WriteTable) -> None:
        if action.table is None:
            body = {
                "apiVersion": ROUTING_TABLES.api_version,
                "kind": ROUTING_TABLES.kind,
                "metadata": {"name": action.spec.model, "namespace": action.namespace},
                "spec": action.spec.to_wire(),
            }
            self._keep(ROUTING_TABLES, await self._client.create(ROUTING_TABLES, body))
            return
        assert action.table.spec is not None
        change = merge_patch(action.table.spec.to_wire(), action.spec.to_wire())
        patch = {"metadata": _precondition(action.table.meta), "spec": change}
        await self._patch(ROUTING_TABLES, action.table.meta, patch)

    async def _save_rollout(self, action: SaveRollout) -> None:
        """By a manager of its own, so that the rest of the status and the progress do not take each other away."""
        meta = action.rule.meta
        body = {
            "apiVersion": ROUTING_RULES.api_version,
            "kind": ROUTING_RULES.kind,
            "metadata": {"name": meta.name, "namespace": meta.namespace, **_precondition(meta)},
            "status": {"rollout": action.rollout.to_wire()},
        }
        found = await self._client.apply_status(ROUTING_RULES, body, field_manager=ROLLOUT_MANAGER, force=True)
        self._keep(ROUTING_RULES, found)

    async def _patch(self, resource: Resource, meta: Meta, patch: KubeObject) -> None:
        self._keep(resource, await self._client.patch_merge(resource, meta.name, meta.namespace, patch))

    def _keep(self, resource: Resource, found: KubeObject) -> None:
        self._cache.observe(resource, PARSERS[resource](found))


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What leads from one to the other, at any depth; fields of a newer version, which neither has, stay."""
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        known = before.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            if inner := merge_patch(known, value):
                patch[name] = inner
        elif name not in before or known != value:
            patch[name] = value
    return patch


def _precondition(meta: Meta) -> dict[str, str]:
    """In a patch: only this object, in the state that was looked at."""
    return {"uid": meta.uid, "resourceVersion": meta.resource_version}


def _require_ours(found: KubeObject, wanted: KubeObject, labels: Sequence[str]) -> None:
    have, want = found["metadata"].get("labels") or {}, wanted["metadata"]["labels"]
    if any(have.get(label) != want[label] for label in labels):
        name = found["metadata"]["name"]
        raise NotOurs(f"{found['kind']} {name} exists and does not belong to this version; delete or rename it")
