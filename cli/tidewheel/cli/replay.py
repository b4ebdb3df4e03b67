"""`tidewheel replay`: what another setting would have done with the same counts."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import click

from tidewheel.cli.errors import CliError
from tidewheel.cli.rollout.connection import cluster_options, connect
from tidewheel.clients.resources import CONFIG_MAPS
from tidewheel.crds.names import LEDGER_KEY, ledger_name
from tidewheel.rollout.ledger.codec import from_text
from tidewheel.rollout.ledger.replay import Replay, ReplayedLook, changed
from tidewheel.rollout.ledger.replay import replay as judge_again


@click.command()
@click.argument("ledger", required=False, type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option("--model", metavar="MODEL", help="The ledger that the operator keeps of this model, instead of a file.")
@click.option(
    "--with-threshold",
    "thresholds",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another value of a judge setting, named as in spec.rollout.judge. May be given more than once.",
)
@click.option("--differences", is_flag=True, help="Only looks whose verdict comes out differently.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@cluster_options
def replay(
    *,
    ledger: Path | None,
    model: str | None,
    thresholds: tuple[str, ...],
    differences: bool,
    output: str,
    namespace: str | None,
    context: str | None,
    kubeconfig: Path | None,
) -> None:
    """Judge the looks of LEDGER again: a file, - for standard input, or with --model what the operator keeps.

    Without a threshold every verdict comes out as it was. A file needs no cluster.

    \b
    Examples:
      tidewheel replay chat.ledger
      tidewheel replay --model chat --with-threshold maxErrorRateIncrease=0.02
      kubectl get configmap chat-rollout-ledger -o jsonpath='{.data.ledger}' | tidewheel replay -
      tidewheel replay chat.ledger --with-threshold mode=limits --differences
    """
    if (ledger is None) == (model is None):
        raise click.UsageError("name either a file or, with --model, a model of the cluster")
    if model is not None:
        text = asyncio.run(_fetch(model, namespace, context, kubeconfig))
    else:
        assert ledger is not None
        text = _read(ledger)
    again = judge_again(from_text(text), change=changed(thresholds))
    looks = [look for look in again.looks if look.differs or not differences]
    if output == "json":
        for look in looks:
            click.echo(json.dumps(_as_json(look)))
    else:
        _print(again, looks)


async def _fetch(model: str, namespace: str | None, context: str | None, kubeconfig: Path | None) -> str:
    async with connect(namespace=namespace, context=context, kubeconfig=kubeconfig) as connection:
        stored = await connection.find(CONFIG_MAPS, ledger_name(model))
        if stored is None or LEDGER_KEY not in (stored.get("data") or {}):
            raise CliError(
                f"{connection.namespace} has no ConfigMap {ledger_name(model)}: no rollout of {model} was judged there "
                "yet. Is the namespace right (-n)?"
            )
        return str(stored["data"][LEDGER_KEY])


def _read(ledger: Path) -> str:
    try:
        with click.open_file(str(ledger), encoding="utf-8") as file:
            return str(file.read())
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read the ledger {ledger}: {error}") from error


def _print(again: Replay, looks: list[ReplayedLook]) -> None:
    for look in looks:
        verdict = look.kind.value if not look.differs else f"{look.look.kind.value} -> {look.kind.value}"
        message = look.verdict.message if look.verdict is not None else look.look.message
        click.echo(f"{_moment(look.look.at)}  step {look.step + 1}  {look.canary_share:7.2%}  {verdict:18} {message}")
    for rollout_id, step in again.partial:
        click.echo(f"note: the first looks of step {step + 1} of {rollout_id} are no longer kept; evidence starts late")
    recorded = next((look for look in again.looks if look.look.kind.value == "BREACH"), None)
    click.echo(f"recorded: {_outcome(recorded)}; replayed: {_outcome(again.first_breach)}")


def _outcome(look: ReplayedLook | None) -> str:
    return f"rolled back at {_moment(look.look.at)} in step {look.step + 1}" if look is not None else "not rolled back"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _as_json(look: ReplayedLook) -> dict[str, object]:
    return {
        "at": _moment(look.look.at),
        "rolloutId": look.rollout_id,
        "step": look.step + 1,
        "recorded": look.look.kind.value,
        "replayed": look.kind.value,
        "reason": look.verdict.reason if look.verdict is not None else look.look.reason,
        "message": look.verdict.message if look.verdict is not None else look.look.message,
    }
