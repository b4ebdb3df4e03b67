"""`tidewheel pause|resume|promote|retry MODEL`: a word to the rollout that runs. What a person types and sees."""

import asyncio
from pathlib import Path

import click

from tidewheel.cli.rollout.connection import cluster_options, connect
from tidewheel.cli.rollout.control import ControlPlan, Request, Verb

_ROLLOUT_HELP = "Only this rollout (its id is in `tidewheel why`); any other is refused."


@click.command()
@click.argument("model")
@click.option("--no-rollback", is_flag=True, help="Do not roll back on a breach either. Think twice.")
@click.option("--rollout", default="", metavar="ID", help=_ROLLOUT_HELP)
@cluster_options
def pause(
    *, model: str, no_rollback: bool, rollout: str, namespace: str | None, context: str | None, kubeconfig: Path | None
) -> None:
    """Stop the rollout of MODEL where it is: weight and bake clock stand still.

    The judge goes on, and a breach still rolls back, unless --no-rollback says otherwise.

    \b
    Examples:
      tidewheel pause chat                    until `tidewheel resume chat`
      tidewheel pause chat --no-rollback      even a breach waits for a person
      tidewheel pause chat --rollout r7f3     only if that rollout still runs (scripts)

    Exit status: 0 done or so already, 1 refused, 2 wrong arguments.
    """
    _say(model, Request(verb=Verb.PAUSE, rollout_id=rollout, no_rollback=no_rollback), namespace, context, kubeconfig)


@click.command()
@click.argument("model")
@click.option("--rollout", default="", metavar="ID", help=_ROLLOUT_HELP)
@cluster_options
def resume(*, model: str, rollout: str, namespace: str | None, context: str | None, kubeconfig: Path | None) -> None:
    """Let a paused rollout of MODEL go on. Time spent paused is no bake time; what was baked before is kept.

    \b
    Examples:
      tidewheel resume chat
      tidewheel resume chat -n shop && tidewheel watch chat -n shop

    Exit status: 0 done or so already, 1 refused, 2 wrong arguments.
    """
    _say(model, Request(verb=Verb.RESUME, rollout_id=rollout), namespace, context, kubeconfig)


@click.command()
@click.argument("model")
@click.option("--next", "only_next", is_flag=True, help="One step, not all of them.")
@click.option("--step", type=click.IntRange(min=1), help="To this step, counted from 1.")
@click.option("--rollout", default="", metavar="ID", help=_ROLLOUT_HELP)
@cluster_options
def promote(
    *,
    model: str,
    only_next: bool,
    step: int | None,
    rollout: str,
    namespace: str | None,
    context: str | None,
    kubeconfig: Path | None,
) -> None:
    """Take the rollout of MODEL forward without waiting for the judge.

    Replicas are waited for, and a breach still rolls back. Your name is recorded; the outcome is FastPromoted.

    \b
    Examples:
      tidewheel promote chat               to the end
      tidewheel promote chat --next        past a hold, to the next step
      tidewheel promote chat --step 3      to step 3

    Exit status: 0 done or so already, 1 refused, 2 wrong arguments.
    """
    if only_next and step is not None:
        raise click.UsageError("--next and --step exclude each other")
    request = Request(verb=Verb.PROMOTE, rollout_id=rollout, step=step, only_next=only_next)
    _say(model, request, namespace, context, kubeconfig)


@click.command()
@click.argument("model")
@click.option("--version", default="", metavar="VERSION", help="Which version, where several were rejected.")
@cluster_options
def retry(*, model: str, version: str, namespace: str | None, context: str | None, kubeconfig: Path | None) -> None:
    """Judge a rejected version of MODEL once more, from the first step, with no evidence kept.

    A version that was rolled back stays rejected by the digest of what it runs, whatever Git says. This is how a person
    says that the reason is gone. A changed version has another digest and needs no retry.

    \b
    Examples:
      tidewheel retry chat
      tidewheel retry chat --version v43

    Exit status: 0 done, 1 refused, 2 wrong arguments.
    """
    _say(model, Request(verb=Verb.RETRY, version=version), namespace, context, kubeconfig)


def _say(model: str, request: Request, namespace: str | None, context: str | None, kubeconfig: Path | None) -> None:
    plan = asyncio.run(_control(model, request, namespace, context, kubeconfig))
    click.echo(f"{plan.namespace}/{plan.model} {plan.message}")
    if plan.is_needed:
        click.echo(f"  `tidewheel watch {plan.model}` shows what comes of it")


async def _control(
    model: str, request: Request, namespace: str | None, context: str | None, kubeconfig: Path | None
) -> ControlPlan:
    async with connect(namespace=namespace, context=context, kubeconfig=kubeconfig) as connection:
        return await connection.control(model, request)
