"""Where the time of one engine step goes: SmolLM2-135M, no scheduler, no HTTP.

    step           one call of the model and the greedy pick, best and median of --repeats
    tokens_per_second  rows of the step / its time; for decodes, the output tokens a second that the model allows
    operation_ms   the same step with every operation timed by itself, best of --repeats; what the operations leave to
                   Python and to the timing itself is `rest`
    recorded_step  a decode as the engine runs it where it can: recorded once, replayed without Python in between

Cases: ``decode_N`` is N sequences of --context tokens that each get one more, their blocks scattered over the pool;
``prefill_N`` is a prompt of N tokens at once. Step times are bound by memory, so close everything else first: best-of
hides short disturbances only. --realtime (as root) keeps others off the cores during each burst, not off the memory.
"""

import argparse
import contextlib
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from bench.report import Report

from tidewheel.engine.artifact import resolve_model
from tidewheel.engine.kernels.interface import AttentionBatch, Kernels, Shape
from tidewheel.engine.kernels.recorded import RecordedDecodes
from tidewheel.engine.model.checkpoint import load_checkpoint
from tidewheel.engine.model.llama import Llama
from tidewheel.engine.settings import Settings, available_cores
from tidewheel.engine.torch_start import choose_kernels

OPERATIONS = ("rows", "linear", "linear_add", "gate_up", "logits", "rms_norm", "rope_and_store", "attention", "argmax")


Step = Callable[[], None]


class TimedKernels:
    """The kernels with a stopwatch around each operation."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self.seconds: dict[str, float] = defaultdict(float)

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._kernels, name)
        return self._timed(name, operation) if name in OPERATIONS else operation

    def _timed(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = operation(*arguments)
            self.seconds[name] += time.perf_counter() - began
            return result

        return call


class Bench:
    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(settings.threads or available_cores())
        dtype, device = getattr(torch, settings.dtype), torch.device(settings.device)
        path = resolve_model(settings.model, sha256=None, needs_file=True).path
        assert path is not None
        checkpoint = load_checkpoint(path, dtype=dtype)
        config = checkpoint.config
        self.shape = Shape(config.num_heads, config.num_kv_heads, config.head_dim, settings.block_size)
        self.kernels = choose_kernels(settings, dtype, device, self.shape)
        self.timed = TimedKernels(self.kernels)
        self.model = Llama(config, checkpoint.weights, kernels=self.timed, shape=self.shape)
        self._dtype, self._device, self._vocab = dtype, device, config.vocab_size

    def step(
        self, *, sequences: int, computed: int, queries: int
    ) -> tuple[Callable[[], None], Callable[[], None] | None]:
        """A step that can be repeated (the same tokens over the same blocks), and the same from a recording."""
        batch, num_blocks = self._batch(sequences, computed, queries)
        layers = self.model.config.num_layers
        pools = [self.kernels.allocate_kv(num_blocks, self.shape, self._dtype, self._device) for _ in range(layers)]
        ids = torch.randint(self._vocab, (sequences * queries,), device=self._device)

        def run() -> None:
            with torch.inference_mode():
                self.timed.argmax(self.model.logits(ids, batch, pools))

        blocks = batch.block_tables.shape[1]
        decodes = RecordedDecodes(
            lambda ids, batch: self.model.logits(ids, batch, pools), self.timed, max_blocks=blocks, device=self._device
        )

        def replay() -> None:
            with torch.inference_mode():
                self.timed.argmax(decodes.run(ids, batch))

        return run, replay if decodes.covers(batch) else None

    def _batch(self, sequences: int, computed: int, queries: int) -> tuple[AttentionBatch, int]:
        size, context = self.shape.block_size, computed + queries
        width = -(-context // size)
        table = torch.randperm(sequences * width).reshape(sequences, width)
        positions = torch.arange(computed, context).repeat(sequences)
        owners = torch.arange(sequences).repeat_interleave(queries)
        starts = torch.arange(sequences + 1) * queries
        batch = AttentionBatch(
            positions=positions.to(self._device),
            slots=(table[owners, positions // size] * size + positions % size).to(self._device),
            query_starts=starts.to(self._device, torch.int32),
            context_lens=torch.full((sequences,), context, dtype=torch.int32, device=self._device),
            block_tables=table.to(self._device, torch.int32),
            sample_rows=(starts[1:] - 1).to(self._device),
            num_decodes=sequences if queries == 1 else 0,
        )
        return batch, sequences * width


def measure(
    report: Report, bench: Bench, case: str, *, sequences: int, computed: int, queries: int, repeats: int
) -> None:
    run, replay = bench.step(sequences=sequences, computed=computed, queries=queries)
    run()
    times, parts = list[float](), list[dict[str, float]]()
    for _ in range(repeats):
        bench.timed.seconds.clear()
        times.append(seconds(run))
        parts.append(dict(bench.timed.seconds))
    rows = sequences * queries
    report_times(report, case, "", times, rows)
    if replay is not None:
        replay()
        report_times(report, case, "recorded_", [seconds(replay) for _ in range(repeats)], rows)
    best = parts[times.index(min(times))]
    for operation in OPERATIONS:
        report.measure(case, f"{operation}_ms", best[operation] * 1000, "ms")
    report.measure(case, "rest_ms", (min(times) - sum(best.values())) * 1000, "ms")


@contextlib.contextmanager
def priority(realtime: bool) -> Iterator[None]:
    """Every thread of this process before all others, for as long as a burst takes."""

    def schedule(policy: int, level: int) -> None:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setscheduler(int(thread), policy, os.sched_param(level))

    if not realtime:
        yield
        return
    schedule(os.SCHED_FIFO, 1)
    try:
        yield
    finally:
        schedule(os.SCHED_OTHER, 0)


def seconds(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def report_times(report: Report, case: str, prefix: str, times: list[float], rows: int) -> None:
    for name, value in (("best", min(times)), ("median", statistics.median(times))):
        report.measure(case, f"{prefix}step_{name}", value * 1000, "ms")
        report.measure(case, f"{prefix}tokens_per_second_{name}", rows / value, "tokens/s")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.step_time", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="fewer repeats")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--kernels", default="auto", choices=("auto", "reference"))
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--context", type=int, default=300, help="tokens each decoding sequence has already")
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--realtime", action="store_true", help="bursts at real-time priority; stalls everything else")
    options = parser.parse_args()
    report = Report("step_time")
    bench = Bench(Settings(model=options.model, dtype=options.dtype, kernels=options.kernels, threads=options.threads))
    repeats = options.repeats or (5 if options.short else 20)
    name = bench.kernels.name
    for sequences in (1, 8, 32):
        case = f"{name}_decode_{sequences}"
        with priority(options.realtime):
            measure(report, bench, case, sequences=sequences, computed=options.context, queries=1, repeats=repeats)
    for prompt in (256, 1024):
        case = f"{name}_prefill_{prompt}"
        with priority(options.realtime):
            measure(report, bench, case, sequences=1, computed=0, queries=prompt, repeats=max(2, repeats // 5))


if __name__ == "__main__":
    main()
