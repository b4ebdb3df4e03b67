"""What everything around the model costs: scheduler, blocks, delivery, text, JSON, sockets.

    real        SmolLM2-135M over HTTP, 256 tokens in, 128 out at --streams. `share_of_step` is the CPU time of the step
                loop outside the model plus that of the event loop, over the time in the model
    simulated   the engine's program with the simulated runner and steps that take no time, over HTTP;
                `tokens_per_core_second` is tokens over the CPU time of its process: all threads, sockets included
    loop        the same without HTTP, in this process: scheduler, blocks and the simulated runner alone

CPU time is what is counted, so other work on the machine changes little. The client is another process.
"""

import argparse
import asyncio
import itertools
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import uvloop
from bench.engine.in_process import Spent, serving
from bench.peers.closed_loop import Load, run
from bench.peers.servers import started, tidewheel
from bench.relay.processes import cpu_seconds
from bench.report import Report

from tidewheel.engine.assembly import build_runner, build_scheduler
from tidewheel.engine.engine import Engine
from tidewheel.engine.faults import Faults
from tidewheel.engine.request import Output, Request, SamplingParams
from tidewheel.engine.settings import Settings
from tidewheel.engine.simulated_text import SIMULATED_VOCAB

REAL = Settings(
    model="smollm2", served_model_name=("smollm2",), port=0, kv_memory=2 << 30, max_model_len=2048, log_level="error"
)
SIMULATED = Settings(model="smollm2", runner="simulated", step_time="0,0,0", kv_memory=2 << 30, max_model_len=2048)


def ask(load: Load, port: int, seed: int) -> float:
    """Runs in a process of its own; the seconds it took."""
    return asyncio.run(run(load, port, seed=seed)).seconds


async def measure_real(report: Report, *, streams: int, rounds: int) -> None:
    load = Load("real", streams * rounds, streams, own=256, output=128)
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as client:
        async with serving(REAL) as server:
            await loop.run_in_executor(client, ask, Load("warm_up", streams, streams, own=16, output=8), server.port, 1)
            before = server.spent()
            seconds = await loop.run_in_executor(client, ask, load, server.port, 2)
            report_real(report, load, server.spent() - before, seconds)


def report_real(report: Report, load: Load, spent: Spent, seconds: float) -> None:
    case = f"real_{load.at_once}"
    report.measure(case, "share_of_step", (spent.loop_cpu + spent.http_cpu) / spent.step_wall, "ratio")
    report.measure(case, "step", 1000 * spent.step_wall / spent.steps, "ms")
    report.measure(case, "loop_per_step", 1e6 * spent.loop_cpu / spent.steps, "us")
    report.measure(case, "http_per_step", 1e6 * spent.http_cpu / spent.steps, "us")
    report.measure(case, "output_tokens_per_second", load.requests * load.output / seconds, "tokens/s")
    report.measure(case, "steps", spent.steps, "count")


async def measure_simulated(report: Report, *, streams: int, rounds: int) -> None:
    words = range(10, SIMULATED_VOCAB)
    load = Load("simulated", streams * rounds, streams, own=64, output=512, vocabulary=words)
    engine = tidewheel("--runner", "simulated", "--step-time", "0,0,0", "--max-num-seqs", str(streams))
    async with started(engine, folder=Path("/nonexistent")) as server:
        await run(replace(load, requests=32, output=8), server.port, seed=1)
        before = cpu_seconds(server.process_id)
        result = await run(load, server.port, seed=2)
        spent = cpu_seconds(server.process_id) - before
    tokens = load.requests * load.output
    case = f"simulated_{streams}"
    report.measure(case, "tokens_per_core_second", tokens / spent, "tokens/s")
    report.measure(case, "tokens_per_second", tokens / result.seconds, "tokens/s")
    report.measure(case, "cores", spent / result.seconds, "cores")


def measure_loop(report: Report, *, streams: int, rounds: int) -> None:
    runner, _, _ = build_runner(SIMULATED, Faults.parse(()))
    engine = Engine(runner=runner, scheduler=build_scheduler(SIMULATED, runner), deliver=lambda outputs: None)
    tokens = 256
    for number in range(streams * rounds):
        engine.submit(_request(number, num_prompt=64, max_tokens=tokens))
    began = time.process_time()
    while engine.has_work:
        engine.step()
    spent = time.process_time() - began
    report.measure(f"loop_{streams}", "tokens_per_core_second", streams * rounds * tokens / spent, "tokens/s")


def _request(number: int, *, num_prompt: int, max_tokens: int) -> Request:
    def drop(output: Output) -> None:
        pass

    ids = list(itertools.islice(itertools.cycle(range(10, 300)), number, number + num_prompt))
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    return Request(
        id=number + 1, label="bench", token_ids=ids, num_prompt=num_prompt, max_tokens=max_tokens, sampling=sampling,
        eos_ids=frozenset(), lane=SIMULATED.default_lane, arrived_at=0.0, deliver=drop,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scheduler_overhead", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="one round, simulated and loop at 64 streams only")
    parser.add_argument("--parts", nargs="*", choices=("real", "simulated", "loop"), help="default: all")
    parser.add_argument("--streams", type=int, default=32, help="of the real model")
    options = parser.parse_args()
    report = Report("scheduler_overhead")
    rounds = 1 if options.short else 3
    parts = options.parts or ("loop", "simulated", "real")
    for streams in (64,) if options.short else (32, 64, 256):
        if "loop" in parts:
            measure_loop(report, streams=streams, rounds=rounds)
        if "simulated" in parts:
            asyncio.run(measure_simulated(report, streams=streams, rounds=rounds))
    if "real" in parts:
        uvloop.run(measure_real(report, streams=options.streams, rounds=rounds))


if __name__ == "__main__":
    main()
