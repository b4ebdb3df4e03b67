"""What a person types and sees."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidewheel.cli.errors import CliError
from tidewheel.cli.rollout.connection import cluster_options, connect

if TYPE_CHECKING:
    from tidewheel.cli.forecast.drawing import Picture

_SHOWN_DAYS = 3.0


@click.command()
@click.argument("model", required=False)
@click.option("--series", type=click.Path(path_type=Path, dir_okay=False), help="A CSV instead of a cluster's model.")
@click.option("--column", help="Its demand column.")
@click.option("--lead-minutes", type=click.FloatRange(1, 240), default=10.0, show_default=True)
@click.option("--unit", type=click.Choice(["decode", "prefill"]), default="decode", show_default=True)
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with the chart."
)
@click.option("--png", "png_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the chart as PNG.")
@cluster_options
def forecast(
    *,
    model: str | None,
    series: Path | None,
    column: str | None,
    lead_minutes: float,
    unit: str,
    html_file: Path | None,
    png_file: Path | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: Path | None,
) -> None:
    """Draw the demand of MODEL, its forecast until now + lead, and the margin on it.

    What the operator has learnt is read from its ConfigMap MODEL-demand-profile; the forecast is the operator's own.

    \b
    Examples:
      tidewheel forecast chat
      tidewheel forecast chat --unit prefill --html chat.html
      tidewheel forecast --series demand.csv --column tok_per_s --lead-minutes 30 --png demand.png
    """
    from tidewheel.cli.forecast.drawing import page, png, terminal_chart

    if series is not None:
        if column is None:
            raise CliError("--series needs --column, the name of the demand column")
        picture = _of_series(series, column, lead_minutes)
    elif model is not None:
        profile = asyncio.run(_profile(model, namespace, context, kubeconfig))
        picture = _of_profile(model, profile, unit, lead_minutes)
    else:
        raise CliError("name a MODEL of the cluster, or give --series FILE with --column")
    for line in terminal_chart(picture):
        click.echo(line)
    if html_file is not None:
        html_file.write_text(page(picture), encoding="utf-8")
    if png_file is not None:
        png_file.write_bytes(png(picture))


async def _profile(
    model: str, namespace: str | None, context: str | None, kubeconfig: Path | None
) -> Mapping[str, Any]:
    from tidewheel.clients.resources import CONFIG_MAPS

    async with connect(namespace=namespace, context=context, kubeconfig=kubeconfig) as connection:
        found = await connection.find(CONFIG_MAPS, f"{model}-demand-profile")
        if found is None:
            raise CliError(
                f"there is no demand profile of {connection.namespace}/{model} yet: the operator writes one every 15 "
                "minutes for models whose versions have spec.scaling, once it has --prometheus-url"
            )
    try:
        body: Mapping[str, Any] = json.loads(found["data"]["profile"])
        return body
    except (KeyError, ValueError, TypeError) as error:
        raise CliError(f"ConfigMap {model}-demand-profile holds no profile: {error}") from error


def _of_profile(model: str, profile: Mapping[str, Any], unit: str, lead_minutes: float) -> "Picture":
    step = int(profile["stepSeconds"])
    values = [float("nan") if value is None else float(value) for value in profile[unit]]
    first = int(profile["end"]) - len(values)
    return _picture(model, f"{unit} tok/s", step=step, first_bucket=first, values=values, lead_minutes=lead_minutes)


def _of_series(series: Path, column: str, lead_minutes: float) -> "Picture":
    from tidewheel.autoscaler.backtest.series import checked_series
    from tidewheel.cli.backtest.reading import read_csv

    found = checked_series(read_csv(series, column))
    return _picture(
        found.name,
        column,
        step=found.step_seconds,
        first_bucket=found.first_bucket,
        values=found.values.tolist(),
        lead_minutes=lead_minutes,
    )


def _picture(
    title: str, unit: str, *, step: int, first_bucket: int, values: list[float], lead_minutes: float
) -> "Picture":
    import math

    from tidewheel.autoscaler.forecast.calendar import DAY_SECONDS, Calendar
    from tidewheel.autoscaler.forecast.combination import Forecaster
    from tidewheel.cli.forecast.drawing import Picture

    if not values:
        raise CliError(f"{title}: nothing is known of its demand yet")
    forecaster = Forecaster(Calendar(step), lead_seconds=lead_minutes * 60)
    for offset, value in enumerate(values):
        forecaster.observe(first_bucket + offset, None if math.isnan(value) else value)
        forecaster.forecast()
    found = forecaster.forecast()
    shown = min(len(values), int(_SHOWN_DAYS * DAY_SECONDS / step))
    margin = found.margin
    origin = f"p99 of {margin.samples} errors at this lead" if margin.calibrated else "until there are enough errors"
    heaviest = ", ".join(f"{name} {weight:.0%}" for name, weight in found.weights[:3])
    return Picture(
        title=title,
        unit=unit,
        step_seconds=step,
        first_at=float((first_bucket + len(values) - shown) * step),
        past=values[-shown:],
        forecast=[float(value) for value in found.values],
        margin=margin.factor,
        sentence=f"{found.at_lead:,.0f} in {lead_minutes:g} min by {heaviest}; "
        f"x {margin.factor:.2f} margin ({origin}) = {found.peak * margin.factor:,.0f} to prepare for",
    )
