"""The engine's own scheduler and runner on an 8B-shaped decoder with random weights: no HTTP, no text.

decode_step            one token for N sequences of --prompt tokens, replayed from a CUDA graph
bandwidth_fraction     bytes of weights and KV that the step reads / time / peak. Aim: >= 0.6 with one sequence
replay_launch          what starting a replay costs the CPU
eager_step             the same step launched operation by operation: what graphs are for
ttft, tpot             N requests at once (--prompt tokens in, --output tokens out, the shared token budget)
output_tokens_per_second, prefill_tokens_per_second
"""

import statistics
import time
from dataclasses import replace

import torch
from bench.gpu.device import Device, open_device, parser
from bench.report import Report
from tests.engine.builders import make_request
from tests.engine.kernels.batches import Sequence, make_batch, on

from tidewheel.engine.assembly import build_scheduler
from tidewheel.engine.engine import Engine
from tidewheel.engine.kernels.cuda.kernels import TritonKernels
from tidewheel.engine.kernels.interface import Kernels, Shape
from tidewheel.engine.kernels.recorded import RecordedDecodes
from tidewheel.engine.kernels.reference import ReferenceKernels
from tidewheel.engine.model.checkpoint import expected_shapes
from tidewheel.engine.model.config import ModelConfig
from tidewheel.engine.model.llama import Llama
from tidewheel.engine.request import Output, Request
from tidewheel.engine.settings import Settings
from tidewheel.engine.torch_runner import TorchRunner

EIGHT_B = ModelConfig(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32, num_kv_heads=8,
    head_dim=128, rms_norm_eps=1e-5, rope_theta=500000.0, max_position=4096,
)  # fmt: skip
TINY = replace(
    EIGHT_B,
    vocab_size=128,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
)
STREAMS = (1, 8, 64, 256)


class Replica:
    def __init__(self, config: ModelConfig, device: Device, *, kv_memory: int) -> None:
        self.device = device
        self.kernels: Kernels = TritonKernels() if device.torch.type == "cuda" else ReferenceKernels()
        if device.torch.type == "cuda":
            self.kernels.recorded_sizes = STREAMS  # the sizes measured here; a server records 34 of them
        self.shape = Shape(config.num_heads, config.num_kv_heads, config.head_dim, 16)
        sizes = expected_shapes(config) | {"lm_head.weight": (config.vocab_size, config.hidden_size)}
        weights = {
            name: torch.empty(size, dtype=torch.bfloat16, device=device.torch).normal_(std=0.02)
            for name, size in sizes.items()
        }
        embedding = config.vocab_size * config.hidden_size
        self.weight_bytes = 2 * (sum(weight.numel() for weight in weights.values()) - embedding)
        self.kv_bytes = 2 * 2 * config.num_layers * config.num_kv_heads * config.head_dim  # a token
        self.model = Llama(config, weights, kernels=self.kernels, shape=self.shape)
        self.runner = TorchRunner(
            self.model, kernels=self.kernels, dtype=torch.bfloat16, device=device.torch, kv_memory=kv_memory
        )


@torch.inference_mode()
def measure_step(report: Report, replica: Replica, *, sequences: int, context: int) -> None:
    device, shape, layers = replica.device, replica.shape, replica.model.config.num_layers
    width = -(-context // shape.block_size)
    table = torch.randperm(sequences * width).reshape(sequences, width).to(torch.int32)
    batch = on(make_batch([Sequence(context - 1)] * sequences, table), device.torch.type)
    pools = [replica.kernels.allocate_kv(sequences * width, shape, torch.bfloat16, device.torch) for _ in range(layers)]
    token_ids = torch.zeros(sequences, dtype=torch.int64, device=device.torch)

    def eager() -> torch.Tensor:
        return replica.model.logits(token_ids, batch, pools)

    case = f"streams_{sequences}"
    report.measure(case, "eager_step", device.seconds(eager, repeats=5) * 1e3, "ms")
    decodes = RecordedDecodes(
        lambda ids, batch: replica.model.logits(ids, batch, pools),
        replica.kernels,
        max_blocks=width,
        device=device.torch,
    )
    if not decodes.covers(batch):
        return
    seconds = device.seconds(lambda: decodes.run(token_ids, batch), repeats=20)
    num_bytes = replica.weight_bytes + sequences * context * replica.kv_bytes
    report.measure(case, "decode_step", seconds * 1e3, "ms")
    report.measure(case, "bandwidth_fraction", num_bytes / seconds / device.bandwidth, "ratio")
    launches = []
    for _ in range(20):
        device.wait()
        began = time.perf_counter()
        decodes.run(token_ids, batch)
        launches.append(time.perf_counter() - began)
    device.wait()
    report.measure(case, "replay_launch", statistics.median(launches) * 1e6, "us")


def serve(
    replica: Replica, settings: Settings, *, streams: int, prompt: int, output: int
) -> tuple[list[list[float]], float]:
    """All requests at once: when each got its tokens, in seconds since the start, and how long all took."""
    times: dict[Request, list[float]] = {}
    began = time.monotonic()

    def deliver(outputs: list[Output]) -> None:
        for item in outputs:
            if item.token_id is not None:
                times.setdefault(item.request, []).append(time.monotonic() - began)

    engine = Engine(runner=replica.runner, scheduler=build_scheduler(settings, replica.runner), deliver=deliver)
    vocab = replica.model.config.vocab_size
    for index in range(streams):
        request = make_request([(index * 7919 + i) % vocab for i in range(prompt)], max_tokens=output)
        request.eos_ids = frozenset()
        engine.submit(request)
    while engine.has_work:
        engine.step()
    return list(times.values()), time.monotonic() - began


def measure_streams(
    report: Report, replica: Replica, settings: Settings, *, streams: int, prompt: int, output: int
) -> None:
    times, seconds = serve(replica, settings, streams=streams, prompt=prompt, output=output)
    first = [stream[0] for stream in times]
    case = f"streams_{streams}"
    report.distribution(case, "ttft", [value * 1e3 for value in first], "ms")
    if output > 1:
        report.distribution(case, "tpot", [(s[-1] - s[0]) / (len(s) - 1) * 1e3 for s in times], "ms")
    report.measure(case, "output_tokens_per_second", sum(map(len, times)) / seconds, "tokens/s")
    report.measure(case, "prefill_tokens_per_second", streams * prompt / max(first), "tokens/s")


def main() -> None:
    program = parser("bench.gpu.streams", __doc__)
    program.add_argument("--prompt", type=int, default=1024)
    program.add_argument("--output", type=int, default=128)
    options = program.parse_args()
    report = Report("gpu_streams")
    device = open_device(options)
    prompt, output = (20, 4) if options.small else (options.prompt, options.output)
    config = TINY if options.small else EIGHT_B
    tokens = (prompt + output + 16) * (2 if options.small else max(STREAMS))
    kv_memory = 2 * 2 * config.num_layers * config.num_kv_heads * config.head_dim * tokens
    replica = Replica(config, device, kv_memory=kv_memory)
    settings = Settings(model="random", max_num_batched_tokens=8192, prefix_caching=False)
    for streams in (1, 2) if options.small else STREAMS:
        measure_step(report, replica, sequences=streams, context=prompt)
    serve(replica, settings, streams=1, prompt=prompt, output=2)  # compiles what the first prefill needs
    for streams in (1, 2) if options.small else STREAMS:
        measure_streams(report, replica, settings, streams=streams, prompt=prompt, output=output)


if __name__ == "__main__":
    main()
