"""The small platform, and launch day (DESIGN section 12)."""

import math

from tidewheel.autoscaler.errors import SizingError
from tidewheel.autoscaler.sizing.assumptions import LaunchDayAssumptions, SmallAssumptions
from tidewheel.autoscaler.sizing.figures import Sheet


def size_small(a: SmallAssumptions) -> Sheet:
    """Pages, sequences by both ways of counting, GPUs, and what a bad canary would do."""
    sheet = Sheet()
    sheet.section("Memory of a replica")
    page = sheet.add(
        "page_megabytes", "A KV page", a.kv_megabytes_per_token * a.page_tokens, "MB", "kv_megabytes_per_token x page"
    )
    free = sheet.add(
        "free_gigabytes",
        "Free for KV",
        a.gpu_gigabytes - a.weight_gigabytes - a.reserve_gigabytes,
        "GB",
        "gpu_gigabytes - weight_gigabytes - reserve_gigabytes",
    )
    pages = sheet.add("pages", "Pages", free * 1e3 / page, "pages", "free_gigabytes / page_megabytes")
    tokens = a.input_tokens + a.output_tokens
    each = sheet.add(
        "pages_per_sequence",
        "Pages of a whole sequence",
        float(math.ceil(tokens / a.page_tokens)),
        "pages",
        "ceil((input_tokens + output_tokens) / page_tokens)",
    )
    fill = sheet.add(
        "mean_fill",
        "Share of it that a running sequence holds on average",
        (a.input_tokens + a.output_tokens / 2) / tokens,
        "share",
        "(input_tokens + output_tokens / 2) / (input_tokens + output_tokens)",
    )
    if pages < each:
        raise SizingError(f"{free:g} GB free for KV do not hold one sequence; raise gpu_gigabytes")
    usual = pages / (each * fill)
    sequences = sheet.add(
        "sequences",
        "Sequences, by the usual estimate (mean fill)",
        usual,
        "sequences",
        "pages / (pages_per_sequence x mean_fill)",
        used=float(math.floor(usual)),
    )
    sheet.add(
        "full_sequences",
        "Sequences, if all were at their end",
        pages / each,
        "sequences",
        "pages / pages_per_sequence",
        used=float(math.floor(pages / each)),
    )
    sheet.section("Load")
    stay = sheet.add(
        "reply_seconds",
        "A request stays",
        a.first_token_seconds + a.output_tokens * a.tpot_ms / 1e3,
        "s",
        "first_token_seconds + output_tokens x tpot_ms",
    )
    sheet.add(
        "gpus",
        "GPUs",
        a.requests_per_second * stay / sequences,
        "GPUs",
        "requests_per_second x reply_seconds / sequences",
    )
    sheet.section("Canary")
    sheet.add(
        "exposed",
        "Requests a second that a canary's first step exposes",
        a.requests_per_second * a.canary_share,
        "1/s",
        "requests_per_second x canary_share",
    )
    sheet.add("slo_use", "Version in service, of its SLO", a.tpot_ms / a.slo_tpot_ms, "share", "tpot_ms / slo_tpot_ms")
    sheet.add(
        "canary_slo_use",
        "Next version, of its SLO (above 1: it must be caught)",
        a.canary_tpot_ms / a.slo_tpot_ms,
        "share",
        "canary_tpot_ms / slo_tpot_ms",
    )
    sheet.add("cold_start_minutes", "A cold start", a.cold_start_seconds / 60, "min", "cold_start_seconds / 60")
    return sheet


def size_launch_day(a: LaunchDayAssumptions) -> Sheet:
    """What five times the demand does to an image pool, and what each rung of the ladder gives back."""
    sheet = Sheet()
    sheet.section("Without a ladder")
    rate = sheet.add(
        "images_per_second",
        "The pool makes",
        a.pool_gpus / a.gpu_seconds_per_image,
        "1/s",
        "pool_gpus / gpu_seconds_per_image",
    )
    demand = sheet.add("demand", "Demand", rate * a.demand_factor, "1/s", "images_per_second x demand_factor")
    sheet.add(
        "backlog", "Backlog after the hours", (demand - rate) * a.hours * 3600, "images", "(demand - rate) x hours"
    )
    sheet.section("With the ladder")
    total = sheet.add(
        "gpus", "GPUs once background is paused", a.pool_gpus + a.background_gpus, "GPUs", "pool_gpus + background_gpus"
    )
    paid = demand * a.paid_share
    paid_gpus = sheet.add(
        "paid_gpus",
        "Paid users at full quality take",
        paid * a.gpu_seconds_per_image,
        "GPUs",
        "demand x paid_share x gpu_seconds_per_image",
    )
    left = max(total - paid_gpus, 0.0)
    free = sheet.add(
        "free_images_per_second",
        "Free users get, in fast mode",
        left / a.fast_gpu_seconds_per_image,
        "1/s",
        "(gpus - paid_gpus) / fast_gpu_seconds_per_image",
    )
    wanted = demand - paid
    sheet.add(
        "free_served_share",
        "Share of free demand that is served",
        free / wanted if wanted else 1.0,
        "share",
        "free_images_per_second / (demand x (1 - paid_share))",
    )
    sheet.add(
        "images_in_flight_per_user",
        "Images in flight of one user",
        1.0,
        "images",
        "a rule: one at a time, then the queue",
    )
    return sheet
