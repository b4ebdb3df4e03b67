"""What a size rests on. Bytes, seconds, tokens; money in whatever currency ``gpu_hour_price`` is given in."""

from dataclasses import dataclass, fields, replace
from typing import Any, Final

from tidewheel.autoscaler.errors import SizingError


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAssumptions:
    """A chat service: load, model shape, GPU, efficiency, site."""

    messages_per_day: float = 4.3e9
    """Messages that users send in a day."""
    peak_to_mean: float = 2.0
    """Peak rate over the mean of the day."""
    input_tokens: float = 2_000
    """Tokens of a message with its history."""
    output_tokens: float = 500
    """Tokens of a reply."""
    cached_input_share: float = 0.5
    """Share of the input found in prefix caches, and not computed again."""
    parameters: float = 70e9
    """Parameters of the model."""
    layers: int = 80
    """Layers of the model."""
    attention_heads: int = 64
    """Attention heads; without grouped-query attention each would have its own KV."""
    kv_heads: int = 8
    """KV heads (grouped-query attention)."""
    head_dimension: int = 128
    """Dimension of a head."""
    weight_bytes: float = 2.0
    """Bytes of a parameter: 2 in bf16, 1 in fp8."""
    kv_bytes: float = 2.0
    """Bytes of a KV element: 2 in bf16, 1 in fp8."""
    sequence_tokens: float = 2_000
    """Tokens that a running sequence holds, for the batch that fits."""
    gpus_per_replica: int = 4
    """GPUs that hold the model together."""
    gpu_memory: float = 80e9
    """Bytes of a GPU's memory (H100: 80 GB)."""
    gpu_bandwidth: float = 3.35e12
    """Bytes a second of a GPU's memory (H100: 3.35 TB/s)."""
    gpu_flops: float = 989e12
    """Dense bf16 operations a second of a GPU (H100: 989 T)."""
    memory_reserve_share: float = 0.1
    """Share of memory for activations, graphs and fragmentation."""
    decode_bandwidth_share: float = 0.6
    """Share of the bandwidth that decode steps reach in practice."""
    prefill_compute_share: float = 0.5
    """Share of the compute that prefill reaches in practice."""
    headroom: float = 0.2
    """GPUs beyond the peak's need: spares, failures, forecast errors."""
    regions: int = 4
    """Regions; all but one of them carry the whole."""
    gpus_per_server: int = 8
    """GPUs of a server."""
    server_kilowatts: float = 10.2
    """Power of a server at full load."""
    pue: float = 1.2
    """Site power over server power."""
    gpu_hour_price: float = 2.5
    """Price of a GPU for an hour."""
    store_bandwidth: float = 2e9
    """Bytes a second at which a replica reads weights from the store."""
    fast_store_bandwidth: float = 10e9
    """The same from a local or parallel store."""
    image_pull_seconds: float = 60
    """Pulling the container image on a fresh node."""
    warm_up_seconds: float = 60
    """Compilation and first token."""
    long_prompt_tokens: float = 100_000
    """A long prompt, for what one costs."""
    availability: float = 0.999
    """Share of messages that end well, over 30 days."""
    significant_digits: int = 2
    """Rates are rounded down and loads up to so many digits before they are used; 0 computes on with exact values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallAssumptions:
    """A small platform: one 13B-class model, one GPU a replica, a canary at work."""

    requests_per_second: float = 1_000
    """Requests a second at the peak."""
    gpu_gigabytes: float = 40
    """GB of a GPU's memory."""
    weight_gigabytes: float = 26
    """GB of weights."""
    reserve_gigabytes: float = 1
    """GB for activations and fragmentation."""
    kv_megabytes_per_token: float = 0.8
    """MB of KV a token (no grouped-query attention)."""
    page_tokens: int = 16
    """Tokens of a KV page."""
    input_tokens: float = 200
    """Tokens of a prompt."""
    output_tokens: float = 300
    """Tokens of a reply."""
    first_token_seconds: float = 0.15
    """Time to the first token."""
    tpot_ms: float = 22
    """p99 time per output token of the version in service."""
    canary_tpot_ms: float = 41
    """The same of the next version, which is worse."""
    slo_tpot_ms: float = 30
    """What is promised."""
    canary_share: float = 0.01
    """Share of requests that a canary sees in its first step."""
    cold_start_seconds: float = 180
    """From order to first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDayAssumptions:
    """An image model's launch: demand far above what the pool was bought for."""

    pool_gpus: float = 8_000
    """GPUs of the image pool."""
    gpu_seconds_per_image: float = 16
    """GPU time of an image at full quality."""
    fast_gpu_seconds_per_image: float = 8
    """GPU time of an image in fast mode."""
    demand_factor: float = 5
    """Demand over what the pool can make."""
    paid_share: float = 0.2
    """Share of demand from paying users."""
    background_gpus: float = 4_000
    """GPUs that pausing background work frees."""
    hours: float = 1
    """How long the queue would grow, if nothing were done."""


Assumptions = FleetAssumptions | SmallAssumptions | LaunchDayAssumptions
PRESETS: Final[dict[str, type[Assumptions]]] = {
    "fleet": FleetAssumptions,
    "small": SmallAssumptions,
    "launch-day": LaunchDayAssumptions,
}


def with_changes(assumptions: Assumptions, changes: dict[str, float]) -> Assumptions:
    """The assumptions with some changed. Raises SizingError for a name that is none, or a value that makes no sense."""
    names = {item.name: item for item in fields(assumptions)}
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in names:
            raise SizingError(f"{name} is no assumption here; they are: {', '.join(names)}")
        least = 0.0 if name in _MAY_BE_ZERO else 1e-12
        if not least <= value < float("inf"):
            raise SizingError(f"{name}={value:g}: give a number above zero")
        whole = names[name].type in (int, "int")
        if whole and value != int(value):
            raise SizingError(f"{name}={value:g}: give a whole number")
        values[name] = int(value) if whole else value
    return replace(assumptions, **values)


_MAY_BE_ZERO: Final = frozenset(
    {"cached_input_share", "memory_reserve_share", "headroom", "significant_digits", "paid_share", "background_gpus"}
)
