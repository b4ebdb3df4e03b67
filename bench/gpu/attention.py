"""How near attention comes to the card's limits, on the heads of an 8B model (32 query, 8 KV, 128 wide), bf16.

bandwidth_fraction  decode: bytes of K and V / time / peak; the pools of several layers take turns, so that no run
                    finds its KV in the cache. Aim: >= 0.65 with >= 256 MB of KV
flop_fraction       prefill: 4 * heads * 128 * visible pairs / time / peak
"""

import torch
from bench.gpu.device import Device, open_device, parser
from bench.report import Report
from tests.engine.kernels.batches import Sequence, make_batch, make_shape, make_tables, on

from tidewheel.engine.kernels.cuda.kernels import TritonKernels
from tidewheel.engine.kernels.interface import AttentionBatch

HEADS, KV_HEADS, DIM = 32, 8, 128
DECODES = [(1, 32768), (8, 8192), (32, 2048), (64, 2048), (256, 1024)]
PREFILLS = [(1, 0, 8192), (4, 0, 2048), (1, 30000, 2048)]
CACHE_BYTES = 256 << 20  # more than any card's L2


def prepare(sequences: list[Sequence], device: Device) -> tuple[AttentionBatch, torch.Tensor, list[torch.Tensor]]:
    shape = make_shape(HEADS, KV_HEADS, DIM)
    table, num_blocks = make_tables(sequences)
    kernels = TritonKernels()
    rows = sum(s.queries for s in sequences)
    q = torch.randn((rows, (HEADS + 2 * KV_HEADS) * DIM), dtype=torch.bfloat16, device=device.torch)
    cached = CACHE_BYTES if device.torch.type == "cuda" else 0
    layers = max(1, -(-cached // (num_blocks * 2 * 16 * KV_HEADS * DIM * 2)))
    pools = [kernels.allocate_kv(num_blocks, shape, torch.bfloat16, device.torch).normal_() for _ in range(layers)]
    return on(make_batch(sequences, table), device.torch.type), q, pools


def seconds_per_layer(sequences: list[Sequence], device: Device) -> float:
    batch, q, pools = prepare(sequences, device)
    kernels, shape = TritonKernels(), make_shape(HEADS, KV_HEADS, DIM)

    def all_layers() -> torch.Tensor:
        return [kernels.attention(q, pool, batch, shape) for pool in pools][-1]

    if device.torch.type != "cuda":
        return device.seconds(all_layers, repeats=1) / len(pools)
    recording = kernels.record(all_layers)
    return device.seconds(recording.replay, repeats=20) / len(pools)


def main() -> None:
    options = parser("bench.gpu.attention", __doc__).parse_args()
    report = Report("gpu_attention")
    device = open_device(options)
    for count, context in [(1, 20)] if options.small else DECODES:
        seconds = seconds_per_layer([Sequence(context - 1)] * count, device)
        num_bytes = 2 * count * context * KV_HEADS * DIM * 2
        case = f"decode_{count}x{context}"
        report.measure(case, "time", seconds * 1e6, "us")
        report.measure(case, "kv", num_bytes / 1e6, "MB")
        report.measure(case, "bandwidth_fraction", num_bytes / seconds / device.bandwidth, "ratio")
    for count, computed, queries in [(1, 3, 4)] if options.small else PREFILLS:
        seconds = seconds_per_layer([Sequence(computed, queries)] * count, device)
        pairs = count * (queries * computed + queries * (queries + 1) / 2)
        case = f"prefill_{count}x{queries}_after_{computed}"
        report.measure(case, "time", seconds * 1e6, "us")
        report.measure(case, "flop_fraction", 4 * HEADS * DIM * pairs / seconds / device.flops, "ratio")


if __name__ == "__main__":
    main()
