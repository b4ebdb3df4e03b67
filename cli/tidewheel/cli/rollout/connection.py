"""Reads and writes the objects of one model with the caller's own rights; decides nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from tidewheel.cli.errors import CliError
from tidewheel.cli.rollout.control import ControlPlan, Request, plan_control
from tidewheel.clients.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, ServerUnavailable
from tidewheel.clients.kubernetes import ROUTING_RULES, ROUTING_TABLES, KubeClient, load_access
from tidewheel.clients.resources import SELF_SUBJECT_REVIEWS, KubeObject, Resource

USER_AGENT: Final = "tidewheel-cli"
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Connection:
    """One identity at one cluster, and the namespace that was meant."""

    client: KubeClient
    namespace: str
    server: str

    async def find(self, resource: Resource, name: str) -> KubeObject | None:
        """The object, or None; raises CliError where the cluster or the caller lacks something."""
        try:
            return await self.client.get(resource, name, self.namespace)
        except NotFound:
            return None
        except Forbidden as error:
            raise forbidden(error) from error

    async def rule_and_table(self, model: str) -> tuple[KubeObject | None, KubeObject | None]:
        """Both objects of a model, read at the same time."""
        rule, table = await asyncio.gather(self.find(ROUTING_RULES, model), self.find(ROUTING_TABLES, model))
        return rule, table

    async def names(self, resource: Resource) -> list[str]:
        """What there is of a kind; empty where it may not be asked."""
        try:
            found = await self.client.list(resource, self.namespace)
        except ApiError:
            return []
        return sorted(item["metadata"]["name"] for item in found.items)

    async def actor(self) -> str:
        """Our name as the API server knows it; every identity may ask for its own."""
        body: KubeObject = {"apiVersion": SELF_SUBJECT_REVIEWS.api_version, "kind": SELF_SUBJECT_REVIEWS.kind}
        try:
            review = await self.client.create(SELF_SUBJECT_REVIEWS, body)
        except ApiError:
            return USER_AGENT
        return str(review["status"]["userInfo"]["username"])[:256]

    async def control(self, model: str, request: Request) -> ControlPlan:
        """Plans and writes until a write is accepted; another writer's change is read and planned upon afresh."""
        actor = await self.actor()
        for _ in range(_ATTEMPTS):
            rule, table = await self.rule_and_table(model)
            if rule is None or table is None:
                raise CliError(await self._nothing(model))
            plan = plan_control(request, rule=rule, table=table, actor=actor, now=datetime.now(UTC))
            if not plan.is_needed or await self._write(plan, table):
                return plan
            # From here on it is this rollout that is meant: a successor was not typed for.
            request = request if request.rollout_id or not plan.rollout_id else _for(request, plan)
        raise CliError(
            f"{self.namespace}/{model} was changed by others {_ATTEMPTS} times meanwhile; nothing was written"
        )

    async def _write(self, plan: ControlPlan, table: KubeObject) -> bool:
        try:
            await self.client.patch_json(ROUTING_TABLES, plan.model, plan.namespace, plan.operations)
        except Forbidden as error:
            raise forbidden(error) from error
        except (Conflict, ServerUnavailable):
            return await self._is_written(plan)
        except Invalid:
            if await self._is_written(plan):
                return True
            now = await self.find(ROUTING_TABLES, plan.model)
            if now is not None and now["metadata"]["resourceVersion"] == table["metadata"]["resourceVersion"]:
                raise
            return False
        return True

    async def _is_written(self, plan: ControlPlan) -> bool:
        """The answer was lost, not the write."""
        table = await self.find(ROUTING_TABLES, plan.model)
        return table is not None and table["spec"].get("control") == plan.operations[-1]["value"]

    async def _nothing(self, model: str) -> str:
        there = ", ".join(await self.names(ROUTING_RULES)) or "none"
        return f"{self.namespace} routes no model {model} (RoutingRules there: {there}). Is the namespace right (-n)?"


def _for(request: Request, plan: ControlPlan) -> Request:
    return Request(
        verb=request.verb,
        rollout_id=plan.rollout_id,
        step=request.step,
        only_next=request.only_next,
        no_rollback=request.no_rollback,
        version=request.version,
    )


def forbidden(error: Forbidden) -> CliError:
    """With the role to ask for."""
    return CliError(f"{error}. Ask for the Role tidewheel-sre (chart value sre.subjects).")


@asynccontextmanager
async def connect(*, namespace: str | None, context: str | None, kubeconfig: Path | None) -> AsyncIterator[Connection]:
    """Raises CliError where the cluster does not know Tidewheel."""
    access = load_access(kubeconfig=kubeconfig, context=context)
    async with KubeClient(access, user_agent=USER_AGENT) as client:
        yield Connection(client, namespace or access.namespace, access.server)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which cluster and namespace."""
    options = (
        click.option("-n", "--namespace", help="Namespace.  [default: that of the context]"),
        click.option("--context", help="Context of the kubeconfig."),
        click.option(
            "--kubeconfig", type=click.Path(path_type=Path), help="Default: $KUBECONFIG, else ~/.kube/config."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
