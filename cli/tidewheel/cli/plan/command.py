"""What a person types and sees."""

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import click

from tidewheel.cli.errors import CliError

if TYPE_CHECKING:
    from tidewheel.autoscaler.sizing.assumptions import Assumptions
    from tidewheel.autoscaler.sizing.figures import Figure, Sheet

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BARE = frozenset({"GPUs", "servers", "replicas", "sequences", "streams", "images", "pages", "tokens", "1/s", "tok/s"})


@click.command()
@click.argument("platform", type=click.Choice(["fleet", "small", "launch-day"]), default="fleet")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change an assumption. May be repeated.")
@click.option("--assumptions", "only_assumptions", is_flag=True, help="List the assumptions and stop.")
@click.option("--exact", is_flag=True, help="Compute on with exact values instead of planning figures of two digits.")
@click.option("--formulas", is_flag=True, help="Show where each figure comes from.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def plan(
    *, platform: str, changes: tuple[str, ...], only_assumptions: bool, exact: bool, formulas: bool, output: str
) -> None:
    """How many GPUs a platform needs, step by step, from the load to the price of a message.

    PLATFORM is fleet (a 70B chat service for very many people), small (one 13B model and its canary) or launch-day
    (an image pool under five times its demand). Every assumption has a name and may be changed.

    \b
    Examples:
      tidewheel plan
      tidewheel plan --set messages_per_day=1e8 --set weight_bytes=1 --set kv_bytes=1
      tidewheel plan small --formulas
      tidewheel plan launch-day --set paid_share=0.3
      tidewheel plan --assumptions
    """
    from tidewheel.autoscaler.sizing.assumptions import PRESETS, with_changes

    wanted = dict(_change(text) for text in changes)
    if exact and platform == "fleet":
        wanted.setdefault("significant_digits", 0)
    assumed = with_changes(PRESETS[platform](), wanted)
    if only_assumptions:
        _print_assumptions(assumed, output=output)
        return
    sheet = _size(assumed)
    if output == "json":
        click.echo(json.dumps({"assumptions": asdict(assumed), "figures": [asdict(figure) for figure in sheet]}))
        return
    section = ""
    for figure in sheet:
        if figure.section != section:
            section = figure.section
            click.echo(f"{section}\n{'-' * len(section)}")
        click.echo(f"  {figure.text:58} {_shown(figure):>14}" + (f"   = {figure.formula}" if formulas else ""))
    if not formulas:
        click.echo("\n--formulas shows where each comes from, --assumptions what it rests on, --set changes that.")


def _size(assumed: "Assumptions") -> "Sheet":
    from tidewheel.autoscaler.sizing.assumptions import FleetAssumptions, SmallAssumptions
    from tidewheel.autoscaler.sizing.fleet import size_fleet
    from tidewheel.autoscaler.sizing.small import size_launch_day, size_small

    if isinstance(assumed, FleetAssumptions):
        return size_fleet(assumed)
    return size_small(assumed) if isinstance(assumed, SmallAssumptions) else size_launch_day(assumed)


def _change(text: str) -> tuple[str, float]:
    name, sign, value = text.partition("=")
    try:
        if not sign:
            raise ValueError(text)
        return name.strip(), float(value)
    except ValueError:
        raise CliError(f"--set {text}: write NAME=NUMBER, such as output_tokens=300") from None


def _print_assumptions(assumed: "Assumptions", *, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(asdict(assumed)))
        return
    for field in fields(assumed):
        click.echo(f"  {field.name:32} {getattr(assumed, field.name):>16,g}")


def _shown(figure: "Figure") -> str:
    value, unit = figure.value, figure.unit
    if unit == "share":
        return f"{100 * value:.3g} %"
    if unit == "s" and value < 1:
        return f"{1000 * value:.3g} ms"
    if unit == "money":
        return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
    if unit in _BARE:
        return f"{value:,.0f} {unit}"
    for size, prefix in _PREFIXES:
        if unit in ("B", "FLOP") and value >= size:
            return f"{value / size:.4g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
