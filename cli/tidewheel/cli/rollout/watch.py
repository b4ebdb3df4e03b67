"""`tidewheel watch MODEL`: a rollout as it goes. What a person types and sees."""

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tidewheel.cli.errors import CliError
from tidewheel.cli.rollout.connection import Connection, cluster_options, connect
from tidewheel.cli.rollout.progress import Progress, Standing, progress_of
from tidewheel.cli.rollout.words import COLUMNS, closing, head, metric_row

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

EXIT_STATUS: Final = {
    Standing.DONE: 0,
    Standing.FAILED: 1,
    Standing.UNSEEN: 3,
    Standing.MOVING: 3,
    Standing.WAITING_FOR_PERSON: 4,
}
_COLOURS: Final = {"BREACH": "red", "SUSPECT": "yellow", "BLIND": "yellow", "SKEWED": "yellow", "CLEAR": "green"}


@click.command()
@click.argument("model")
@click.option("--once", is_flag=True, help="Print the present state and leave.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="S", help="Give up watching after S seconds.")
@click.option("--every", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds between looks.")
@click.option("--keep-watching", is_flag=True, help="Stay also while it waits for a person, and after its end.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@cluster_options
def watch(
    *,
    model: str,
    once: bool,
    timeout: float | None,
    every: float,
    keep_watching: bool,
    output: str,
    namespace: str | None,
    context: str | None,
    kubeconfig: Path | None,
) -> None:
    """The rollout of MODEL as it goes, until it ends or needs a person.

    At a terminal the view is renewed in place; into a pipe one line is printed whenever something changes, so that a
    pipeline's log tells the story.

    \b
    Examples:
      tidewheel watch chat
      kubectl apply -f chat.yaml && tidewheel watch chat --timeout 7200     promote from a pipeline
      tidewheel watch chat --once -o json | jq .verdict

    \b
    Exit status:
      0  traffic is as the rule wants it      1  rolled back, superseded, refused, or the cluster cannot be read
      2  wrong arguments                      3  --timeout passed, or --once, while it goes on
      4  it waits for a person: paused, or held beyond its patience
    """
    watching = _watch(
        model,
        once=once,
        seconds=timeout,
        every=every,
        keep=keep_watching,
        output=output,
        where=(namespace, context, kubeconfig),
    )
    try:
        standing = asyncio.run(watching)
    except KeyboardInterrupt:
        standing = Standing.MOVING
    sys.exit(EXIT_STATUS[standing])


async def _watch(
    model: str,
    *,
    once: bool,
    seconds: float | None,
    every: float,
    keep: bool,
    output: str,
    where: tuple[str | None, str | None, Path | None],
) -> Standing:
    namespace, context, kubeconfig = where
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds if seconds is not None else None
    screen = _Screen(output, live=not once)
    async with connect(namespace=namespace, context=context, kubeconfig=kubeconfig) as connection:
        with screen:
            while True:
                progress = await _look(connection, model)
                screen.show(progress)
                over = progress.standing in {Standing.DONE, Standing.FAILED, Standing.WAITING_FOR_PERSON}
                if once or (over and not keep) or (ends is not None and loop.time() + every > ends):
                    return progress.standing
                await asyncio.sleep(every)


async def _look(connection: Connection, model: str) -> Progress:
    rule, table = await connection.rule_and_table(model)
    if rule is None and table is None:
        raise CliError(
            f"{connection.namespace} routes no model {model}. Is the namespace right (-n)? "
            "`tidewheel status -A` lists every model"
        )
    return progress_of(rule, table, namespace=connection.namespace, model=model)


class _Screen:
    """In place at a terminal; else a line per change."""

    def __init__(self, output: str, *, live: bool) -> None:
        self._json = output == "json"
        self._in_place = live and not self._json and sys.stdout.isatty()
        self._full = not live
        self._live: Live | None = None
        self._last = ""

    def __enter__(self) -> "_Screen":
        if self._in_place:
            from rich.live import Live

            self._live = Live(auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """The present state."""
        if self._json:
            self._print_once(json.dumps({**asdict(progress), "exitStatus": EXIT_STATUS[progress.standing]}))
        elif self._live is not None:
            self._live.update(view(progress), refresh=True)
        elif self._full:
            from rich.console import Console

            Console().print(view(progress))
        else:
            self._print_once(f"{progress.split}  {head(progress)}  {progress.message if progress.is_running else ''}")

    def _print_once(self, line: str) -> None:
        if line != self._last:
            click.echo(line.rstrip())
            self._last = line


def view(progress: Progress) -> "Group":
    """The whole view, as wide as the terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = f"{progress.namespace}/{progress.model}  {progress.split}"
    parts: list[Text | Table] = [Text(title, style="bold")]
    parts.append(Text(head(progress), style=_COLOURS.get(progress.verdict, "")))
    if progress.metrics:
        table = Table(pad_edge=False, box=None, header_style="dim")
        for column in COLUMNS:
            table.add_column(column, no_wrap=column in {"metric", ""})
        for metric in progress.metrics:
            table.add_row(*metric_row(metric))
        parts.append(table)
    parts += [Text(line) for line in closing(progress)]
    return Group(*parts)
