"""`tidewheel plan` and `tidewheel backtest`, as people and CI call them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.autoscaler.waves import wave

from tidewheel.cli.errors import CliError
from tidewheel.cli.main import cli


def _run(*arguments: str) -> str:
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def _csv(path: Path, *, days: float = 4, gap: bool = False) -> Path:
    lines = ["time,load,other"]
    for index, value in enumerate(wave(days, step_seconds=1800)):
        if gap and 60 <= index < 64:
            continue
        minutes = 30 * index
        lines.append(f"2026-05-{1 + minutes // 1440:02}T{minutes // 60 % 24:02}:{minutes % 60:02}:00Z,{value:.2f},x")
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("gap", [False, True], ids=["whole", "with rows left out"])
def test_backtest_prints_one_json_line_per_policy(tmp_path: Path, gap: bool) -> None:
    file = _csv(tmp_path / "demand.csv", gap=gap)
    output = _run("backtest", "--series", str(file), "--column", "load", "--lead-minutes", "30", "--json")
    lines = [json.loads(line) for line in output.splitlines()]
    assert [line["policy"] for line in lines] == [
        "ours", "hpa_tuned", "fixed_headroom_20", "last_value", "seasonal_naive", "oracle",
    ]  # fmt: skip
    for line in lines:
        assert {"missed_percent", "gpu_hours", "gpu_hours_vs_hpa"} <= line.keys()
    hours = {line["policy"]: line["gpu_hours"] for line in lines}
    assert lines[0]["gpu_hours_vs_hpa"] == pytest.approx(hours["ours"] / hours["hpa_tuned"], abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--column", "none", "--lead-minutes", "30"), "no demand column 'none'; it has: load, other"),
        (("--column", "other", "--lead-minutes", "30"), "line 2: other: 'x' is no number"),
        (("--column", "load", "--lead-minutes", "10"), "shorter than the step"),
        (("--lead-minutes", "30"), "needs --column"),
    ],
)
def test_backtest_says_what_is_wrong_with_its_input(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    file = _csv(tmp_path / "demand.csv")
    with pytest.raises(CliError, match=words):
        CliRunner().invoke(cli, ["backtest", "--series", str(file), *arguments], catch_exceptions=False)


def test_plan_prints_the_fleet_and_obeys_changes() -> None:
    assert "75,000 GPUs" in _run("plan")
    assert "7,200,000 images" in _run("plan", "launch-day")
    figures = json.loads(_run("plan", "fleet", "--set", "messages_per_day=4.3e8", "-o", "json"))["figures"]
    assert next(figure["value"] for figure in figures if figure["key"] == "gpus") == 7_500


def test_plan_names_an_assumption_that_is_none() -> None:
    from tidewheel.autoscaler.errors import SizingError

    with pytest.raises(SizingError, match="tokens is no assumption"):
        CliRunner().invoke(cli, ["plan", "--set", "tokens=1"], catch_exceptions=False)


def test_forecast_draws_a_chart_a_page_and_a_png(tmp_path: Path) -> None:
    file, page, image = _csv(tmp_path / "demand.csv"), tmp_path / "chart.html", tmp_path / "chart.png"
    files = ("--html", str(page), "--png", str(image))
    output = _run("forecast", "--series", str(file), "--column", "load", "--lead-minutes", "60", *files)
    assert "█" in output
    assert "margin" in output.splitlines()[-1]
    assert "<svg" in page.read_text()
    assert image.read_bytes().startswith(b"\x89PNG")


def test_why_prints_the_arithmetic_of_a_version() -> None:
    from tidewheel.cli.why.scaling import scaling_lines

    unit = {"unit": "decode tok/s", "present": 3000, "forecast": 3100, "need": 3720, "capacity": 1000}
    pending = [{"name": "chat-v1-3-0", "expectedReady": "2026-11-30T12:00:00Z"}]
    scaling = {"message": "words", "binding": "decode tok/s", "units": [unit], "pending": pending, "shortfall": 2}
    starts = {"p50Seconds": 80, "p95Seconds": 120, "samples": [{"pod": "p", "path": "cold", "totalSeconds": 80}]}
    lines = scaling_lines({"desiredReplicas": 5, "readyReplicas": 3, "scaling": scaling, "coldStart": starts})
    assert " size: words" in lines
    assert any("3,720 needed / 1,000 a replica = 3.72 replicas" in line for line in lines)
    assert any("1 pending (the next expected at 2026-11-30T12:00:00Z)" in line for line in lines)
    assert any("2 needed and not allowed" in line for line in lines)
    assert any("p95 120 s" in line for line in lines)
    assert scaling_lines({}) == []
