"""What a person types. Which kind of object a name means decides who explains it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import click

from tidewheel.cli.errors import CliError
from tidewheel.cli.rollout.connection import Connection, cluster_options, connect
from tidewheel.cli.why.model_version import explain_version
from tidewheel.cli.why.routing_rule import explain_rule

Explainer = Callable[[Connection, str], Awaitable[Sequence[str] | None]]
"""Lines about the object of that name; None where there is none of this kind."""
EXPLAINERS: Final[dict[str, Explainer]] = {"rr": explain_rule, "mv": explain_version}


@click.command()
@click.argument("name")
@cluster_options
def why(*, name: str, namespace: str | None, context: str | None, kubeconfig: Path | None) -> None:
    """Why NAME does what it does: every number, and the sentence.

    NAME is a model (its RoutingRule: the rollout and its judge) or a version such as chat-v43 (its replicas).

    \b
    Examples:
      tidewheel why chat            the rollout: evidence, limits, what comes next
      tidewheel why chat-v43        a version: why it has as many replicas as it has
      tidewheel why rr/chat         the RoutingRule, where both kinds have that name
    """
    for line in asyncio.run(_explain(name, namespace, context, kubeconfig)):
        click.echo(line)


async def _explain(name: str, namespace: str | None, context: str | None, kubeconfig: Path | None) -> Sequence[str]:
    kind, _, rest = name.rpartition("/")
    if kind not in {"", *EXPLAINERS}:
        raise CliError(f"{kind} is no kind that can be explained; there are {', '.join(EXPLAINERS)}")
    async with connect(namespace=namespace, context=context, kubeconfig=kubeconfig) as connection:
        for explain in [EXPLAINERS[kind]] if kind else EXPLAINERS.values():
            if (lines := await explain(connection, rest)) is not None:
                return lines
        raise CliError(
            f"there is neither a RoutingRule nor a ModelVersion {rest} in {connection.namespace}. "
            "`tidewheel status -A` lists every model"
        )
