"""The arithmetic of a chat fleet: KV bytes, batches, step times, replicas, GPUs, power, price (DESIGN section 12)."""

import math
from typing import Final

from tidewheel.autoscaler.errors import SizingError
from tidewheel.autoscaler.sizing.assumptions import FleetAssumptions
from tidewheel.autoscaler.sizing.figures import Sheet, rounded_down, rounded_up

_DAY: Final = 86_400.0


def size_fleet(assumed: FleetAssumptions) -> Sheet:
    """Every figure from the shape of the model to the price of a message."""
    sheet = Sheet()
    _memory(sheet, assumed)
    _steps(sheet, assumed)
    _load(sheet, assumed)
    _gpus(sheet, assumed)
    _site(sheet, assumed)
    _moments(sheet, assumed)
    return sheet


def _memory(sheet: Sheet, a: FleetAssumptions) -> None:
    sheet.section("Memory of a replica")
    kv = sheet.add(
        "kv_bytes_per_token",
        "KV of a token",
        2 * a.layers * a.kv_heads * a.head_dimension * a.kv_bytes,
        "B",
        "2 x layers x kv_heads x head_dimension x kv_bytes",
    )
    sheet.add(
        "kv_bytes_per_token_fp8",
        "KV of a token in fp8",
        2.0 * a.layers * a.kv_heads * a.head_dimension,
        "B",
        "2 x layers x kv_heads x head_dimension x 1",
    )
    sheet.add(
        "kv_bytes_per_token_without_gqa",
        "KV of a token without grouped-query attention",
        2 * a.layers * a.attention_heads * a.head_dimension * a.kv_bytes,
        "B",
        "2 x layers x attention_heads x head_dimension x kv_bytes",
    )
    weights = sheet.add("weights", "Weights", a.parameters * a.weight_bytes, "B", "parameters x weight_bytes")
    sheet.add("weights_fp8", "Weights in fp8", a.parameters, "B", "parameters x 1")
    total = a.gpus_per_replica * a.gpu_memory
    room = sheet.add(
        "kv_room",
        "Room for KV",
        total * (1 - a.memory_reserve_share) - weights,
        "B",
        "gpus_per_replica x gpu_memory x (1 - memory_reserve_share) - weights",
    )
    if room < a.sequence_tokens * kv:
        each = a.gpu_memory * (1 - a.memory_reserve_share)
        needed = math.ceil((weights + a.sequence_tokens * kv) / each)
        raise SizingError(
            f"{a.gpus_per_replica} GPU(s) of {a.gpu_memory / 1e9:g} GB do not hold the weights and one sequence; set "
            f"gpus_per_replica to at least {needed}"
        )
    tokens = sheet.add("kv_tokens", "Tokens that fit", room / kv, "tokens", "kv_room / kv_bytes_per_token")
    sheet.add(
        "sequences",
        "Sequences that fit",
        tokens / a.sequence_tokens,
        "sequences",
        "kv_tokens / sequence_tokens",
        used=float(math.floor(tokens / a.sequence_tokens)),
    )


def _steps(sheet: Sheet, a: FleetAssumptions) -> None:
    sheet.section("Speed of a replica")
    weights, sequences = sheet["weights"].value, sheet["sequences"].value
    bandwidth = a.gpus_per_replica * a.gpu_bandwidth
    kv_of_sequence = a.sequence_tokens * sheet["kv_bytes_per_token"].value
    ideal = sheet.add(
        "decode_step_ideal",
        "Decode step, ideal",
        (weights + sequences * kv_of_sequence) / bandwidth,
        "s",
        "(weights + sequences x sequence_tokens x kv_bytes_per_token) / (gpus_per_replica x gpu_bandwidth)",
    )
    sheet.add("stream_rate_ideal", "A stream, ideal", 1 / ideal, "tok/s", "1 / decode_step_ideal")
    sheet.add("replica_rate_ideal", "A replica, ideal", sequences / ideal, "tok/s", "sequences / decode_step_ideal")
    step = sheet.add(
        "decode_step",
        "Decode step, in practice",
        ideal / a.decode_bandwidth_share,
        "s",
        "decode_step_ideal / decode_bandwidth_share",
    )
    sheet.add("stream_rate", "A stream, in practice", 1 / step, "tok/s", "1 / decode_step")
    per_gpu = sequences / step / a.gpus_per_replica
    sheet.add(
        "decode_rate_per_gpu",
        "Decode of a GPU",
        per_gpu,
        "tok/s",
        "sequences / decode_step / gpus_per_replica",
        used=rounded_down(per_gpu, a.significant_digits),
    )
    alone = sheet.add(
        "decode_step_alone", "Decode step of one stream alone", weights / bandwidth, "s", "weights / bandwidth"
    )
    sheet.add("stream_rate_alone", "One stream alone", 1 / alone, "tok/s", "1 / decode_step_alone")
    flop = sheet.add("flop_per_token", "Work of a token", 2 * a.parameters, "FLOP", "2 x parameters")
    sheet.add(
        "compute_share_alone",
        "Compute that one stream alone uses",
        flop / alone / (a.gpus_per_replica * a.gpu_flops),
        "share",
        "flop_per_token x stream_rate_alone / (gpus_per_replica x gpu_flops)",
    )
    prefill = a.gpu_flops * a.prefill_compute_share / flop
    sheet.add(
        "prefill_rate_per_gpu",
        "Prefill of a GPU",
        prefill,
        "tok/s",
        "gpu_flops x prefill_compute_share / flop_per_token",
        used=rounded_down(prefill, a.significant_digits),
    )
    sheet.add(
        "prefill_seconds",
        "Prefill of a message, nothing cached",
        a.input_tokens / (prefill * a.gpus_per_replica),
        "s",
        "input_tokens / (prefill_rate_per_gpu x gpus_per_replica)",
    )


def _load(sheet: Sheet, a: FleetAssumptions) -> None:
    sheet.section("Load")
    mean = a.messages_per_day / _DAY
    mean = sheet.add(
        "messages_per_second",
        "Messages, mean",
        mean,
        "1/s",
        "messages_per_day / 86,400",
        used=rounded_up(mean, a.significant_digits),
    )
    peak = sheet.add("peak_messages_per_second", "Messages, peak", mean * a.peak_to_mean, "1/s", "mean x peak_to_mean")
    sheet.add("peak_output_tokens", "Output at the peak", peak * a.output_tokens, "tok/s", "peak x output_tokens")
    sheet.add(
        "peak_input_tokens",
        "Input computed at the peak",
        peak * a.input_tokens * (1 - a.cached_input_share),
        "tok/s",
        "peak x input_tokens x (1 - cached_input_share)",
    )
    seconds = a.output_tokens * sheet["decode_step"].value
    seconds = sheet.add(
        "reply_seconds",
        "A reply takes",
        seconds,
        "s",
        "output_tokens x decode_step",
        used=rounded_up(seconds, a.significant_digits),
    )
    sheet.add("streams", "Streams in flight at the peak", peak * seconds, "streams", "peak x reply_seconds")


def _gpus(sheet: Sheet, a: FleetAssumptions) -> None:
    sheet.section("GPUs")
    decode = sheet.add(
        "decode_gpus",
        "For decode",
        sheet["peak_output_tokens"].value / sheet["decode_rate_per_gpu"].value,
        "GPUs",
        "peak_output_tokens / decode_rate_per_gpu",
    )
    prefill = sheet.add(
        "prefill_gpus",
        "For prefill",
        sheet["peak_input_tokens"].value / sheet["prefill_rate_per_gpu"].value,
        "GPUs",
        "peak_input_tokens / prefill_rate_per_gpu",
    )
    both = decode + prefill
    both = sheet.add(
        "gpus_at_peak",
        "Together",
        both,
        "GPUs",
        "decode_gpus + prefill_gpus",
        used=rounded_up(both, a.significant_digits),
    )
    total = both * (1 + a.headroom)
    total = sheet.add(
        "gpus",
        "With headroom",
        total,
        "GPUs",
        "gpus_at_peak x (1 + headroom)",
        used=rounded_up(total, a.significant_digits),
    )
    sheet.add("replicas", "Replicas", math.ceil(total / a.gpus_per_replica), "replicas", "gpus / gpus_per_replica")
    sheet.add(
        "busy_share",
        "Busy over a day",
        both / a.peak_to_mean / total,
        "share",
        "gpus_at_peak / peak_to_mean / gpus",
    )
    if a.regions > 1:
        sheet.add(
            "region_load_share",
            "Load of a region, so that the others carry the loss of one",
            (a.regions - 1) / a.regions,
            "share",
            "(regions - 1) / regions",
        )
        sheet.add(
            "gpus_with_spare_region",
            "GPUs so that the peak's need stands without one region",
            both * a.regions / (a.regions - 1),
            "GPUs",
            "gpus_at_peak x regions / (regions - 1)",
        )


def _site(sheet: Sheet, a: FleetAssumptions) -> None:
    sheet.section("Power and price")
    gpus = sheet["gpus"].value
    servers = gpus / a.gpus_per_server
    servers = sheet.add(
        "servers",
        "Servers",
        servers,
        "servers",
        "gpus / gpus_per_server",
        used=rounded_up(servers, a.significant_digits),
    )
    power = sheet.add(
        "server_megawatts", "Power of servers", servers * a.server_kilowatts / 1e3, "MW", "servers x server_kilowatts"
    )
    sheet.add("site_megawatts", "Power of the sites", power * a.pue, "MW", "server_megawatts x pue")
    day = sheet.add("price_per_day", "A day", gpus * 24 * a.gpu_hour_price, "money", "gpus x 24 x gpu_hour_price")
    sheet.add("price_per_message", "A message", day / a.messages_per_day, "money", "price_per_day / messages_per_day")
    sheet.add(
        "price_per_million_at_full_use",
        "A million output tokens, a decode GPU at full use",
        a.gpu_hour_price / 3600 / sheet["decode_rate_per_gpu"].value * 1e6,
        "money",
        "gpu_hour_price / 3,600 / decode_rate_per_gpu x 1,000,000",
    )
    sheet.add(
        "price_per_million",
        "A million output tokens, the whole fleet",
        day / (a.messages_per_day * a.output_tokens) * 1e6,
        "money",
        "price_per_day / (messages_per_day x output_tokens) x 1,000,000",
    )


def _moments(sheet: Sheet, a: FleetAssumptions) -> None:
    sheet.section("Starts, long prompts, promises")
    weights = sheet["weights"].value
    load = sheet.add(
        "load_seconds", "Weights from the store", weights / a.store_bandwidth, "s", "weights / store_bandwidth"
    )
    sheet.add(
        "fast_load_seconds",
        "Weights from a fast store",
        weights / a.fast_store_bandwidth,
        "s",
        "weights / fast_store_bandwidth",
    )
    sheet.add(
        "cold_start_seconds",
        "A cold start on a fresh node",
        a.image_pull_seconds + load + a.warm_up_seconds,
        "s",
        "image_pull_seconds + load_seconds + warm_up_seconds",
    )
    sheet.add(
        "long_prompt_kv",
        "KV of a long prompt",
        a.long_prompt_tokens * sheet["kv_bytes_per_token"].value,
        "B",
        "long_prompt_tokens x kv_bytes_per_token",
    )
    sheet.add(
        "long_prompt_seconds",
        "Compute of a whole replica for a long prompt",
        a.long_prompt_tokens / (sheet["prefill_rate_per_gpu"].exact * a.gpus_per_replica),
        "s",
        "long_prompt_tokens / (prefill_rate_per_gpu x gpus_per_replica)",
    )
    sheet.add(
        "error_budget_minutes",
        "Error budget in 30 days",
        (1 - a.availability) * 30 * 24 * 60,
        "min",
        "(1 - availability) x 30 days",
    )
