"""Reads the table, writes it once, and asks the gateways; decides nothing itself."""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Final

from tidewheel.cli.errors import CliError
from tidewheel.cli.rollback.api_server import USER_AGENT, ApiServer
from tidewheel.cli.rollback.gateways import (
    Confirmation,
    Gateway,
    await_generation,
    find_gateways,
    find_ready_versions,
)
from tidewheel.cli.rollback.outcome import Outcome
from tidewheel.cli.rollback.plan import ColdTargetError, RollbackPlan, describe, plan_rollback
from tidewheel.clients.access import load_access
from tidewheel.clients.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, ServerUnavailable
from tidewheel.clients.event_body import event_body
from tidewheel.clients.resources import EVENTS, ROUTING_RULES, ROUTING_TABLES, SELF_SUBJECT_REVIEWS, KubeObject

_ATTEMPTS: Final = 5
_RULE_SECONDS: Final = 1.0

Gateways = Callable[[], list[Gateway] | str]
"""The gateways, or a sentence that says why they cannot be asked."""


def execute(options: argparse.Namespace, *, started: float) -> Outcome:
    """Plans and writes until a write is accepted; raises CliError or ClientsError with a sentence that helps.

    ``started`` is when the program was, on the monotonic clock.
    """
    access = load_access(kubeconfig=options.kubeconfig, context=options.context)
    namespace = options.namespace or access.namespace
    with ApiServer(access) as api, ThreadPoolExecutor(3) as beside:
        # Beside the rest: the write does not wait for whoever tells where the gateways are.
        looking = beside.submit(_find_gateways, api, options.gateways_in)
        asking = beside.submit(_whoami, api)
        telling = beside.submit(_find_rule, api, options.model, namespace)
        table = _read(api, options.model, namespace)
        actor = asking.result()
        plan, table, sent_at = _write(api, table, options, actor=actor, gateways=looking.result, rule=telling.result())
        written, written_at = time.monotonic(), time.time()
        confirmations: Sequence[Confirmation] = []
        note = ""
        if plan.is_needed and not options.dry_run:
            event = beside.submit(_leave_event, api, table, plan, actor)
            confirmations, note = _confirm(api, looking.result, table, since=written, timeout_seconds=options.timeout)
            event.result()
    return Outcome(
        plan=plan,
        actor=actor,
        generation=table["metadata"]["generation"],
        dry_run=options.dry_run,
        write_ms=(written - started) * 1000,
        sent_at=sent_at,
        written_at=written_at,
        confirmations=confirmations,
        note=note,
    )


def _read(api: ApiServer, model: str, namespace: str) -> KubeObject:
    try:
        return api.get(ROUTING_TABLES.path(namespace=namespace, name=model))
    except NotFound as error:
        raise CliError(_no_table(api, model, namespace)) from error
    except Forbidden as error:
        raise _forbidden(error) from error


def _no_table(api: ApiServer, model: str, namespace: str) -> str:
    sentence = f"{namespace}/{model} has no RoutingTable, so no traffic is routed for it."
    try:
        names = [item["metadata"]["name"] for item in api.get(ROUTING_TABLES.path(namespace=namespace))["items"]]
    except ApiError:
        return f"{sentence} Is the namespace right (-n)? `kubectl get routingtables -A` lists them."
    known = f"There: {', '.join(names)}." if names else "That namespace has none: name another with -n."
    return f"{sentence} {known}"


def _whoami(api: ApiServer) -> str:
    """Our name as the API server knows it; every identity may ask for its own."""
    body = {"apiVersion": SELF_SUBJECT_REVIEWS.api_version, "kind": SELF_SUBJECT_REVIEWS.kind}
    try:
        review = api.create(SELF_SUBJECT_REVIEWS.path(), body)
    except ApiError:
        return USER_AGENT
    return str(review["status"]["userInfo"]["username"])[:256]


def _find_rule(api: ApiServer, model: str, namespace: str) -> KubeObject | None:
    """The rule, asked once and briefly; None where it cannot be had: the table is enough for a rollback."""
    path = ROUTING_RULES.path(namespace=namespace, name=model)
    try:
        answer = api.request("GET", path, timeout_seconds=_RULE_SECONDS)
        found = json.loads(answer.body) if answer.status == HTTPStatus.OK else None
    except (ApiError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _find_gateways(api: ApiServer, namespace: str) -> list[Gateway] | str:
    try:
        gateways = find_gateways(api, namespace)
    except ApiError as error:
        return f"the gateways were not asked: {error}"
    return gateways or f"there are no gateways in {namespace} to ask (--gateways-in NS)"


def _write(
    api: ApiServer,
    table: KubeObject,
    options: argparse.Namespace,
    *,
    actor: str,
    gateways: Gateways,
    rule: KubeObject | None,
) -> tuple[RollbackPlan, KubeObject, float]:
    """The plan that was written, the table as it is now, and when the write was sent.

    Another writer's change is read and planned upon afresh.
    """
    name, namespace = table["metadata"]["name"], table["metadata"]["namespace"]
    path = ROUTING_TABLES.path(namespace=namespace, name=name)
    for _ in range(_ATTEMPTS):
        plan = _plan(api, table, options, actor=actor, gateways=gateways, rule=rule)
        if not plan.is_needed or options.dry_run:
            return plan, table, time.time()
        sent_at = time.time()
        try:
            return plan, api.patch_json(path, plan.operations), sent_at
        except (Conflict, Invalid, ServerUnavailable) as error:
            before, table = table, api.get(path)
            if _is_written(table, plan):
                return plan, table, sent_at  # the answer was lost, not the write
            if isinstance(error, Invalid) and _version(before) == _version(table):
                raise
        except Forbidden as error:
            raise _forbidden(error) from error
    raise CliError(
        f"{namespace}/{name} was changed by others {_ATTEMPTS} times meanwhile, last by "
        f"{table['spec']['cause']['actor']} to {describe(table['spec']['targets'])}. "
        "Nothing was written; look at it and try again."
    )


def _plan(
    api: ApiServer,
    table: KubeObject,
    options: argparse.Namespace,
    *,
    actor: str,
    gateways: Gateways,
    rule: KubeObject | None,
) -> RollbackPlan:
    """Gateways are asked for ready replicas only where the table does not say that there are some."""
    plan = partial(
        plan_rollback,
        table,
        actor=actor,
        to=options.to,
        reason=options.reason,
        allow_cold=options.cold,
        rule=rule,
    )
    try:
        return plan(now=datetime.now(UTC))
    except ColdTargetError:
        found = gateways()
        ready = find_ready_versions(api, found, table) if isinstance(found, list) else set()
        return plan(now=datetime.now(UTC), ready=ready)


def _confirm(
    api: ApiServer, gateways: Gateways, table: KubeObject, *, since: float, timeout_seconds: float
) -> tuple[list[Confirmation], str]:
    """When each gateway obeyed, or a note that says why none was asked."""
    if timeout_seconds == 0:
        return [], ""
    found = gateways()
    if isinstance(found, str):
        return [], found
    return await_generation(api, found, table, since=since, timeout_seconds=timeout_seconds), ""


def _leave_event(api: ApiServer, table: KubeObject, plan: RollbackPlan, actor: str) -> None:
    body = event_body(
        table,
        reason="Rollback",
        message=f"{actor} {plan.message}",
        event_type="Warning",
        now=datetime.now(UTC),
        component=USER_AGENT,
    )
    try:
        api.create(EVENTS.path(namespace=table["metadata"]["namespace"]), body)
    except ApiError:
        return  # what counts is written


def _version(table: KubeObject) -> str:
    return str(table["metadata"]["resourceVersion"])


def _is_written(table: KubeObject, plan: RollbackPlan) -> bool:
    cause = next(operation["value"] for operation in plan.operations if operation["path"] == "/spec/cause")
    return bool(table["spec"].get("cause") == cause)


def _forbidden(error: Forbidden) -> CliError:
    return CliError(f"{error}. Ask for the Role tidewheel-sre (chart value sre.subjects).")
