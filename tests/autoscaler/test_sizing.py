"""`tidewheel plan` says what DESIGN section 12 says, figure by figure."""

from dataclasses import fields

import pytest

from tidewheel.autoscaler.errors import SizingError
from tidewheel.autoscaler.sizing.assumptions import (
    PRESETS,
    FleetAssumptions,
    LaunchDayAssumptions,
    SmallAssumptions,
    with_changes,
)
from tidewheel.autoscaler.sizing.figures import Sheet
from tidewheel.autoscaler.sizing.fleet import size_fleet
from tidewheel.autoscaler.sizing.small import size_launch_day, size_small

FLEET = {  # figure: (what the reference says, how exactly it says it)
    "kv_bytes_per_token": (327_680, 0),
    "kv_bytes_per_token_fp8": (163_840, 0),
    "kv_bytes_per_token_without_gqa": (2.6e6, 0.01),
    "weights": (140e9, 0),
    "weights_fp8": (70e9, 0),
    "kv_room": (148e9, 0),
    "kv_tokens": (450_000, 0.01),
    "sequences": (225, 0),
    "decode_step_ideal": (0.0215, 0.005),
    "stream_rate_ideal": (46, 0.02),
    "replica_rate_ideal": (10_500, 0.005),
    "decode_step": (0.036, 0.01),
    "stream_rate": (28, 0.005),
    "decode_rate_per_gpu": (1_500, 0),
    "decode_step_alone": (0.0105, 0.01),
    "stream_rate_alone": (95, 0.01),
    "compute_share_alone": (0.003, 0.15),
    "flop_per_token": (1.4e11, 0),
    "prefill_rate_per_gpu": (3_500, 0),
    "prefill_seconds": (0.140, 0.02),
    "messages_per_second": (50_000, 0),
    "peak_messages_per_second": (100_000, 0),
    "peak_output_tokens": (50e6, 0),
    "peak_input_tokens": (100e6, 0),
    "decode_gpus": (33_300, 0.002),
    "prefill_gpus": (28_600, 0.002),
    "gpus_at_peak": (62_000, 0),
    "gpus": (75_000, 0),
    "busy_share": (0.40, 0.05),
    "servers": (9_400, 0),
    "server_megawatts": (96, 0.005),
    "site_megawatts": (115, 0.005),
    "price_per_day": (4.5e6, 0),
    "price_per_message": (0.001, 0.05),
    "price_per_million_at_full_use": (0.46, 0.01),
    "price_per_million": (2.0, 0.05),
    "reply_seconds": (18, 0),
    "streams": (1.8e6, 0),
    "region_load_share": (0.75, 0),
    "load_seconds": (70, 0),
    "fast_load_seconds": (14, 0),
    "long_prompt_kv": (33e9, 0.01),
    "long_prompt_seconds": (7, 0.02),
    "error_budget_minutes": (43, 0.01),
}
SMALL = {
    "free_gigabytes": (13, 0),
    "page_megabytes": (12.8, 0),
    "pages": (1_020, 0.005),
    "pages_per_sequence": (32, 0),
    "sequences": (45, 0),
    "full_sequences": (31, 0),
    "gpus": (150, 0),
    "exposed": (10, 0),
    "slo_use": (22 / 30, 0),
    "canary_slo_use": (41 / 30, 0),
    "cold_start_minutes": (3, 0),
}
LAUNCH_DAY = {
    "images_per_second": (500, 0),
    "demand": (2_500, 0),
    "backlog": (7.2e6, 0),
    "gpus": (12_000, 0),
    "paid_gpus": (8_000, 0),
    "free_images_per_second": (500, 0),
    "free_served_share": (0.25, 0),
    "images_in_flight_per_user": (1, 0),
}
CASES = [
    pytest.param(sheet, key, value, tolerance, id=f"{name}-{key}")
    for name, sheet, figures in (
        ("fleet", size_fleet(FleetAssumptions()), FLEET),
        ("small", size_small(SmallAssumptions()), SMALL),
        ("launch-day", size_launch_day(LaunchDayAssumptions()), LAUNCH_DAY),
    )
    for key, (value, tolerance) in figures.items()
]


@pytest.mark.parametrize(("sheet", "key", "value", "tolerance"), CASES)
def test_every_figure_of_the_reference(sheet: Sheet, key: str, value: float, tolerance: float) -> None:
    assert sheet[key].value == pytest.approx(value, rel=max(tolerance, 1e-9))
    assert sheet[key].formula


def test_fp8_halves_kv_and_weights_and_so_fits_more_than_twice_as_many() -> None:
    changed = with_changes(FleetAssumptions(), {"weight_bytes": 1, "kv_bytes": 1})
    assert isinstance(changed, FleetAssumptions)
    sheet = size_fleet(changed)
    assert sheet["weights"].value == 70e9
    assert sheet["sequences"].value > 2 * size_fleet(FleetAssumptions())["sequences"].value


def test_exact_values_ask_for_fewer_gpus_than_planning_figures() -> None:
    exact = size_fleet(FleetAssumptions(significant_digits=0))
    assert exact["gpus"].value < 75_000
    assert exact["gpus"].value == exact["gpus"].exact


def test_every_assumption_can_be_changed_and_changes_a_figure() -> None:
    sizes = {"fleet": size_fleet, "small": size_small, "launch-day": size_launch_day}
    for name, kind in PRESETS.items():
        for field in fields(kind):
            assumed = kind()
            other = 1 if field.name == "significant_digits" else round(getattr(assumed, field.name) * 1.25) or 0.4
            other += other == getattr(assumed, field.name)
            changed = with_changes(assumed, {field.name: other})
            before = [figure.value for figure in sizes[name](assumed)]  # type: ignore[operator]
            after = [figure.value for figure in sizes[name](changed)]  # type: ignore[operator]
            assert before != after, f"{name}: {field.name} changes nothing"


def test_a_model_that_does_not_fit_is_refused_with_the_gpus_that_it_needs() -> None:
    with pytest.raises(SizingError, match="gpus_per_replica to at least 2"):
        size_fleet(FleetAssumptions(gpus_per_replica=1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"gpu": 1}, "gpu is no assumption"), ({"layers": 0}, "above zero"), ({"layers": 1.5}, "whole number")],
)
def test_an_assumption_that_makes_no_sense_is_refused_with_its_name(changes: dict[str, float], words: str) -> None:
    with pytest.raises(SizingError, match=words):
        with_changes(FleetAssumptions(), changes)
