"""What a person types and sees."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from tidewheel.cli.errors import CliError


@click.command()
@click.option(
    "--series", type=click.Path(path_type=Path, dir_okay=False), help="CSV with a header; the first column is the time."
)
@click.option("--column", help="Column of the CSV with the demand (tokens or requests per second, or per bucket).")
@click.option("--prometheus", metavar="URL", help="Read the demand from Prometheus instead; needs --query.")
@click.option("--query", help="PromQL of one series, such as sum(rate(tidewheel_offered_tokens_total[5m])).")
@click.option("--days", type=click.FloatRange(0.5, 90), default=14.0, show_default=True, help="With --prometheus.")
@click.option("--step-minutes", type=click.IntRange(1, 30), default=5, show_default=True, help="With --prometheus.")
@click.option(
    "--lead-minutes",
    type=click.FloatRange(1, 240),
    required=True,
    help="Time from ordering a replica to its first token; at least one step of the series.",
)
@click.option(
    "--peak", type=click.FloatRange(1, 100_000), default=40.0, show_default=True, help="Replicas at the peak."
)
@click.option("--quantile", type=click.FloatRange(0.5, 0.999), default=0.99, show_default=True, help="SLO quantile.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per policy.")
def backtest(
    *,
    series: Path | None,
    column: str | None,
    prometheus: str | None,
    query: str | None,
    days: float,
    step_minutes: int,
    lead_minutes: float,
    peak: float,
    quantile: float,
    as_json: bool,
) -> None:
    """Replay recorded demand through this and other policies, before anyone trusts this one.

    Every policy decides when a bucket has ended, knowing only buckets that have; what it orders serves one lead later.
    The HPA is tuned in hindsight to miss no more than ours, so that GPU-hours are compared at equal shortage.

    \b
    Examples:
      tidewheel backtest --series demand.csv --column tok_per_s --lead-minutes 10
      tidewheel backtest --prometheus http://localhost:9090 --lead-minutes 10 \\
          --query 'sum(rate(tidewheel_offered_tokens_total{model="chat",kind="output"}[5m]))'
    """
    from tidewheel.autoscaler.backtest.replay import HPA
    from tidewheel.autoscaler.backtest.replay import backtest as run
    from tidewheel.autoscaler.backtest.series import checked_series
    from tidewheel.cli.backtest.reading import read_csv, read_prometheus

    if (series is None) == (prometheus is None):
        raise CliError("give either --series FILE with --column, or --prometheus URL with --query")
    if series is not None:
        if column is None:
            raise CliError("--series needs --column, the name of the demand column")
        demand = read_csv(series, column)
    else:
        if query is None or prometheus is None:
            raise CliError("--prometheus needs --query, PromQL that gives one series")
        demand = read_prometheus(prometheus, query, days=days, step_seconds=step_minutes * 60, now=datetime.now(UTC))
    demand = checked_series(demand).scaled(peak)
    if lead_minutes * 60 < demand.step_seconds:
        raise CliError(f"a lead of {lead_minutes:g} min is shorter than the step of {demand.step_seconds / 60:g} min")
    scores = run(demand, lead_seconds=int(lead_minutes * 60), quantile=quantile)
    reference = next(found for found in scores if found.policy == HPA).gpu_hours
    lines: list[dict[str, Any]] = [
        {
            "policy": found.policy,
            "missed_percent": round(found.missed_percent, 4),
            "gpu_hours": round(found.gpu_hours, 1),
            "gpu_hours_vs_hpa": round(found.gpu_hours / reference, 4),
            "short_percent": round(found.short_percent, 4),
            "gpu_hours_vs_perfect": round(found.gpu_hours_vs_perfect, 4),
            "setting": found.setting,
        }
        for found in scores
    ]
    if as_json:
        for line in lines:
            click.echo(json.dumps(line))
    else:
        _print(lines, title=f"{demand.name}, {demand.days:.1f} days, lead {lead_minutes:g} min, peak {peak:g} replicas")


def _print(lines: list[dict[str, Any]], *, title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("policy")
    for name in ("load missed", "time short", "GPU-hours", "vs HPA", "vs perfect"):
        table.add_column(name, justify="right")
    table.add_column("setting")
    for line in lines:
        table.add_row(
            line["policy"],
            f"{line['missed_percent']:.2f} %",
            f"{line['short_percent']:.2f} %",
            f"{line['gpu_hours']:,.0f}",
            f"{line['gpu_hours_vs_hpa']:.2f}",
            f"{line['gpu_hours_vs_perfect']:.2f}",
            line["setting"],
        )
    Console().print(table)
