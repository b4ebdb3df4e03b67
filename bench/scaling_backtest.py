"""Recorded demand through every scaling policy: `python -m bench.scaling_backtest [--short]`.

Every series of `bench/data` at leads of 10, 30 and 60 minutes, where its step allows them. Not a timing: the same
numbers come out on any machine.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.report import Report
from bench.scaling.backtest_page import Case, write_page

from tidewheel.autoscaler.backtest.replay import backtest
from tidewheel.autoscaler.backtest.series import checked_series
from tidewheel.cli.backtest.reading import read_csv

DATA = Path(__file__).parent / "data"
PEAK = 40.0
LEADS = (10, 30, 60)


class Source(NamedTuple):
    """A column of a file, and what people call it."""

    name: str
    file: str
    column: str


SOURCES = (
    Source("ServeGen large, requests", "llm_servegen_mlarge_14d_10min", "req_per_s"),
    Source("ServeGen large, input tokens", "llm_servegen_mlarge_14d_10min", "in_tok_per_s"),
    Source("ServeGen large, output tokens", "llm_servegen_mlarge_14d_10min", "out_tok_per_s"),
    Source("ServeGen small, requests", "llm_servegen_msmall_14d_10min", "req_per_s"),
    Source("ServeGen small, output tokens", "llm_servegen_msmall_14d_10min", "out_tok_per_s"),
    Source("ServeGen image+text, requests", "llm_servegen_mmimage_1d_10min", "req_per_s"),
    Source("Azure conversation, requests", "llm_azure2024_conv_7d_10min_digitised", "req_per_min"),
    Source("World Cup, requests", "web_worldcup98_0501_0614_5min", "requests"),
    Source("NASA July, requests", "web_nasa_jul95_5min", "requests"),
    Source("NYC taxi, passengers", "wave_nab_nyctaxi_215d_30min", "passengers"),
    Source("Twitter AAPL", "web_nab_twitter_a_55d_5min", "AAPL"),
    Source("Twitter FB", "web_nab_twitter_a_55d_5min", "FB"),
    Source("Twitter IBM", "web_nab_twitter_a_55d_5min", "IBM"),
    Source("Twitter KO", "web_nab_twitter_a_55d_5min", "KO"),
)
ELSEWHERE = (
    Source("BurstGPT, tokens", "llm_burstgpt_week1_5min", "tok_per_s"),
    Source("Alibaba image generation, QPS", "genai_alibaba_qps_1d_5min", "api_qps_sum"),
)
"""Not in the repository, for want of a clear licence; replayed where --more says where they are."""
SHORT = ("ServeGen image+text, requests",)


def cases(sources: tuple[Source, ...], folder: Path, *, only: str = "") -> Iterator[Case]:
    """Replays, one by one."""
    for source in sources:
        if only and only not in source.name:
            continue
        series = checked_series(read_csv(folder / f"{source.file}.csv", source.column)).scaled(PEAK)
        for lead in LEADS:
            if lead * 60 >= series.step_seconds:
                scores = backtest(series, lead_seconds=lead * 60)
                yield Case(source.name, lead, series.step_seconds // 60, scores)


def main() -> None:
    """Print each measurement; with --write also the page for people."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one series of a day")
    parser.add_argument("--only", default="", help="series whose name contains this")
    parser.add_argument("--more", type=Path, help="folder with the series that are not in the repository")
    parser.add_argument("--write", type=Path, help="page to write the table and the chart to")
    arguments = parser.parse_args()
    report = Report("scaling_backtest")
    sources = tuple(source for source in SOURCES if not arguments.short or source.name in SHORT)
    found: list[Case] = []
    runs = [cases(sources, DATA, only=arguments.only)]
    if arguments.more is not None and not arguments.short:
        runs.append(cases(ELSEWHERE, arguments.more, only=arguments.only))
    for run in runs:
        for case in run:
            found.append(case)
            for score in case.scores:
                name = f"{case.series}, lead {case.lead_minutes} min, {score.policy}"
                report.measure(name, "missed", score.missed_percent, "%")
                report.measure(name, "short", score.short_percent, "%")
                report.measure(name, "gpu_hours", score.gpu_hours, "h")
            if arguments.write is not None:
                write_page(arguments.write, found, peak=PEAK)


if __name__ == "__main__":
    sys.exit(main())
