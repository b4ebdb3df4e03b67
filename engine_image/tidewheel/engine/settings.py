"""The command line, as one record. Every duration is a setting, so that tests can shorten the world."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from tidewheel.engine.errors import StartError

_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 10**3, "M": 10**6, "G": 10**9}


DEFAULT_TERMINATION_LOG = "/dev/termination-log"


@dataclass(frozen=True, slots=True)
class Settings:
    model: str
    runner: Literal["torch", "simulated"] = "torch"
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: tuple[str, ...] = ()
    sha256: str | None = None
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    device: str = "cpu"
    threads: int | None = None
    tensor_parallel: int = 1
    kernels: Literal["auto", "reference"] = "auto"
    kv_memory: int = 512 << 20  # bytes
    block_size: int = 16
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 512
    max_waiting: int = 4096
    tpot_target: float | None = None  # seconds
    prefix_caching: bool = True
    prefix_seed: str | None = None
    lanes: tuple[str, ...] = ("paid", "free", "background")
    default_lane: str = "free"
    lane_max_wait: float = 10.0
    lane_floor_share: float = 0.05
    max_seqs_per_tenant: int | None = None
    max_kv_share_per_tenant: float | None = None
    api_token_file: str | None = None
    api_token_grace: float = 300.0
    accept_after_sigterm: float = 3.0
    shutdown_timeout: float = 60.0
    hang_timeout: float = 90.0
    death_grace: float = 2.0
    keep_alive: float = 75.0
    write_timeout: float = 60.0
    max_body_bytes: int = 16 << 20
    trace_endpoint: str = ""
    trace_timeout: float = 10.0
    trace_flush_seconds: float = 5.0
    termination_log: str = DEFAULT_TERMINATION_LOG
    log_level: str = "info"
    step_time: str = "5,0.02,0.05"
    reply_tokens: int = 256
    fault: tuple[str, ...] = ()


def quantity(text: str) -> int:
    """A Kubernetes quantity of memory in bytes: 512Mi, 2Gi, 1000000."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G)?", text)
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a quantity of memory; write 512Mi or 2Gi")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in (piece.strip() for piece in text.split(",")) if part)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tidewheel.engine",
        description="One replica: continuous batching behind an OpenAI server.",
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add("--model", required=True, help="smollm2, a GGUF file, a Hugging Face folder, or a file:// URI of either")
    add("--runner", choices=("torch", "simulated"), help="simulated: no model, for tests; never chosen by itself")
    add("--host")
    add("--port", type=int, help="0: any free one (see the log)")
    add("--served-model-name", type=_names, help="names clients may use, comma-separated; the first is shown")
    add("--sha256", help="hex digest that the model file must have")
    _add_capacity(parser)
    _add_lifecycle(parser)
    simulated = parser.add_argument_group("simulated runner")
    simulated.add_argument("--step-time", metavar="BASE_MS,PER_PREFILL_TOKEN_MS,PER_DECODE_SEQ_MS")
    simulated.add_argument("--reply-tokens", type=_positive, help="length at which a reply ends by itself")
    faults = (
        "slow:F slower:N stall:N error:SHARE error-after:N hang[:N] crash[:N] die[:N] leak:BYTES start-crash "
        "start-delay:S not-ready"
    )
    simulated.add_argument("--fault", action="append", help=f"{faults}; may be repeated")
    return parser


def _add_capacity(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("capacity").add_argument
    add("--dtype", choices=("bfloat16", "float16", "float32"))
    add("--device", help="cpu or cuda")
    add("--tensor-parallel", type=_positive, help="processes, each with its share of every layer; one GPU each")
    add("--threads", type=_positive, help="torch threads; default: the cores this process may use")
    add("--kernels", choices=("auto", "reference"), help="reference: plain torch even where our own kernels would run")
    add("--kv-memory", type=quantity, help="memory for KV blocks, such as 512Mi")
    add("--block-size", type=_positive)
    add("--max-model-len", type=_positive)
    add("--max-num-seqs", type=_positive)
    add("--tpot-target", type=_seconds, help="seconds per output token to which the number running adapts")
    add(
        "--max-num-batched-tokens",
        type=_positive,
        help="tokens a step may compute; more: faster prefill, longer pauses for decodes",
    )
    add("--max-waiting", type=_positive, help="requests that may wait before 503")
    add("--no-prefix-caching", dest="prefix_caching", action="store_false")
    add("--prefix-seed", help="make cache keys reproducible, for tests")
    add("--lanes", type=_names, help="lane names, highest first")
    add("--default-lane", help="lane of requests that name none")
    add("--lane-floor-share", type=_share, help="share of the tokens that is owed to each lane in which requests wait")
    add("--max-seqs-per-tenant", type=_positive, help="requests of one tenant that may run at once")
    add("--max-kv-share-per-tenant", type=_share, help="share of the KV pool that one tenant may hold, such as 0.5")
    add("--lane-max-wait", type=_seconds, help="seconds of waiting after which a lane has every second turn")


def _add_lifecycle(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("access and lifecycle").add_argument
    add("--api-token-file", help="file with the bearer token that callers must send")
    add("--api-token-grace", type=_seconds, help="seconds in which a token is still taken after the file has a new one")
    add("--accept-after-sigterm", type=_seconds, help="seconds in which new work is still taken after SIGTERM")
    add("--shutdown-timeout", type=_seconds, help="seconds after SIGTERM at which open replies are ended")
    add("--hang-timeout", type=_seconds, help="seconds without progress after which /health is 503")
    add("--death-grace", type=_seconds, help="seconds between the step loop's death and the exit")
    add("--keep-alive", type=_seconds, help="seconds an idle connection stays open")
    add("--write-timeout", type=_seconds, help="seconds after which a client that reads nothing is cut off")
    add("--max-body-bytes", type=_positive)
    add(
        "--trace-endpoint", metavar="URL", help="OTLP/HTTP address of a collector, e.g. http://collector:4318/v1/traces"
    )
    add("--trace-timeout", type=_seconds, help="seconds in which the collector must take spans, or they are dropped")
    add("--trace-flush-seconds", type=_seconds, help="spans of this time are sent together")
    add("--termination-log", help="file that gets the last words of a failed start")
    add("--log-level", choices=("debug", "info", "warning", "error"))


def parse_settings(arguments: Sequence[str] | None = None) -> Settings:
    parsed = vars(_parser().parse_args(arguments))
    for name in ("fault",):
        if name in parsed:
            parsed[name] = tuple(parsed[name])
    assert parsed.keys() <= {f.name for f in fields(Settings)}
    settings = Settings(**parsed)
    if settings.default_lane not in settings.lanes:
        raise StartError(f"--default-lane {settings.default_lane} is not among --lanes {','.join(settings.lanes)}.")
    if settings.fault and settings.runner != "simulated":
        raise StartError("--fault works with --runner simulated only.")
    return settings


def available_memory(root: str = "/") -> int | None:
    """Bytes this process may still take: what the machine has, cut by the limit of its control group; None: unknown."""
    found = []
    try:
        with open(os.path.join(root, "proc/meminfo"), encoding="ascii") as file:
            found += [int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:")]
        with open(os.path.join(root, "sys/fs/cgroup/memory.max"), encoding="ascii") as file:
            found.append(int(file.read()))
    except (OSError, ValueError):
        pass
    return min(found, default=None)


def available_cores() -> int:
    """Cores this process may use: its affinity mask, cut by the CPU quota of its control group."""
    cores = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            limit, period = file.read().split()
    except (OSError, ValueError):
        return cores
    return cores if limit == "max" else max(1, min(cores, -(-int(limit) // int(period))))
