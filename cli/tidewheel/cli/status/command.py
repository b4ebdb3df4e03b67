"""What a person types and sees."""

import asyncio
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from tidewheel.cli.errors import CliError
from tidewheel.cli.status.report import ModelReport, Mood, report

_COLOURS: Final = {Mood.GOOD: "green", Mood.WAITING: "yellow", Mood.BAD: "red"}


@click.command()
@click.argument("model", required=False)
@click.option("-n", "--namespace", help="Namespace.  [default: that of the context]")
@click.option("-A", "--all-namespaces", is_flag=True, help="Every namespace.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--context", help="Context of the kubeconfig.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Default: $KUBECONFIG, else ~/.kube/config.")
def status(
    *,
    model: str | None,
    namespace: str | None,
    all_namespaces: bool,
    output: str,
    context: str | None,
    kubeconfig: Path | None,
) -> None:
    """Versions, replicas, the split in force, and what is wrong, in words.

    \b
    Examples:
      tidewheel status                  every model of the namespace
      tidewheel status chat -n shop     one model
      watch tidewheel status -A
    """
    reports = asyncio.run(_read(model, namespace, all_namespaces, context, kubeconfig))
    if output == "json":
        click.echo(json.dumps([asdict(entry) for entry in reports]))
    elif not reports:
        raise CliError(_nothing(model))
    else:
        _print(reports)


async def _read(
    model: str | None, namespace: str | None, all_namespaces: bool, context: str | None, kubeconfig: Path | None
) -> list[ModelReport]:
    from tidewheel.clients.errors import NotFound
    from tidewheel.clients.kubernetes import MODEL_VERSIONS, ROUTING_RULES, ROUTING_TABLES, KubeClient, load_access

    access = load_access(kubeconfig=kubeconfig, context=context)
    where = None if all_namespaces else namespace or access.namespace
    async with KubeClient(access, user_agent="tidewheel-cli") as client:
        try:
            versions, rules, tables = await asyncio.gather(
                *(client.list(resource, where) for resource in (MODEL_VERSIONS, ROUTING_RULES, ROUTING_TABLES))
            )
        except NotFound as error:
            raise CliError(f"{access.server} does not know Tidewheel's objects: install the chart first") from error
    return report(versions=versions.items, rules=rules.items, tables=tables.items, now=datetime.now(UTC), model=model)


def _nothing(model: str | None) -> str:
    what = f"nothing named {model}" if model else "no model"
    return f"there is {what} here. -A looks in every namespace; examples/chat.yaml is one to start with"


def _print(reports: list[ModelReport]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for entry in reports:
        table = Table(title=f"{entry.namespace}/{entry.model}", title_justify="left", expand=True, pad_edge=False)
        for column in ("version", "phase", "ready", "traffic", "wanted", "age"):
            table.add_column(column, no_wrap=True)
        table.add_column("", ratio=1)
        for line in entry.versions:
            colour = _COLOURS[line.mood]
            table.add_row(
                line.version,
                f"[{colour}]{line.phase}[/]",
                line.ready,
                line.share,
                line.wanted,
                line.age,
                line.message,
            )
        console.print(table)
        for note in entry.notes:
            console.print(f"  {note}", markup=False, highlight=False)
        console.print()
