"""The small platform with real processes: is a bad version caught at 1 %, how soon, and how many requests met it?

Two gateways, a Prometheus, and simulated runners calibrated to DESIGN section 12 (v42 about 22 ms, v43 about 41 ms p99
TPOT against an SLO of 30 ms) under an open load of streamed replies. The operator's own queries, reader, judge and step
machine move traffic; only Kubernetes is left out: the table is a file that the gateways follow.

    slow            v43 takes 41 ms a token
    errors          some of v43's requests fail
    ttft            v43 takes 400 ms longer to its first token
    stalls          v43 pauses for 3 s now and then
    from-25%        v43 becomes slow once it has 25 % of traffic
    one-replica     one of v43's two replicas is slow
    leak            v43 becomes slower with every token
    healthy         v43 is as v42

One platform runs them one after the other, each as a version of its own. The full size of 1,000 requests/s on 150 GPUs
is `python -m bench.rollout_simulation --part faults`, with the same judge and step machine.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.live.load import Load
from bench.live.programs import Engine, Platform, running
from bench.live.rollout import BASE, QUERIES_PER_LOOK, LiveRollout
from bench.report import Report

from tidewheel.clients.prometheus import Prometheus
from tidewheel.rollout.judge.settings import JudgeSettings
from tidewheel.rollout.machine.policy import RolloutPolicy, Step

SLO: Final = {"ttftMs": 1000, "tpotMs": 30}
GOOD_MS: Final = 20.0
SLOW_MS: Final = 39.0
"""Of a step; with scheduling and sockets p99 TPOT comes out at about 22 and 41 ms on a quiet machine."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One of the canary."""

    step_ms: float = GOOD_MS
    prefill_token_ms: float = 0.01
    faults: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Variant:
    """The canary's replicas, and those it has once ``from_share`` is reached."""

    replicas: Sequence[Replica]
    later: Sequence[Replica] = ()
    from_share: float = 2.0


def variants(*, error_share: float, stall_tokens: int, leak_tokens: int) -> Mapping[str, Variant]:
    """How bad the faults are is a matter of how long there is to see them."""
    slow = Replica(SLOW_MS)
    return {
        "slow": Variant([slow]),
        "errors": Variant([Replica(faults=[f"error:{error_share}"])]),
        "ttft": Variant([Replica(prefill_token_ms=20.0)]),
        "stalls": Variant([Replica(faults=[f"stall:{stall_tokens}"])]),
        "from-25%": Variant([Replica()], later=[slow], from_share=0.25),
        "one-replica": Variant([Replica(), slow]),
        "leak": Variant([Replica(faults=[f"slower:{leak_tokens}"])]),
        "healthy": Variant([Replica()]),
    }


VARIANTS: Final = variants(error_share=0.02, stall_tokens=5_000, leak_tokens=1_000_000)
SHORT: Final = variants(error_share=0.3, stall_tokens=1_000, leak_tokens=10_000)


async def measure(
    chosen: Sequence[str], among: Mapping[str, Variant], *, options: argparse.Namespace, report: Report
) -> None:
    """One rollout after the other, under one load."""
    base = {"base": Engine(version=BASE, step_ms=GOOD_MS)}
    with running(
        base,
        gateways=options.gateways,
        scrape_seconds=options.scrape_seconds,
        slo_ms=SLO,
        prometheus=options.prometheus,
    ) as platform:
        prometheus = Prometheus(platform.prometheus_url)
        load = Load(platform.gateways, options.rate, options.tokens)
        sending = asyncio.create_task(load.run())
        try:
            await asyncio.sleep(options.history_seconds)
            for number, name in enumerate(chosen):
                rollout = await _roll_out(f"v{43 + number}", among[name], platform, prometheus, options)
                _report(report, f"{name}/{options.rate:g}rps", rollout, load)
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
            prometheus.close()
    report.measure(f"all/{options.rate:g}rps", "requests", len(load.sent), "count")
    report.measure(f"all/{options.rate:g}rps", "failed_on_base", sum(sent.failed for sent in load.to(BASE)), "count")


async def _roll_out(
    version: str, variant: Variant, platform: Platform, prometheus: Prometheus, options: argparse.Namespace
) -> LiveRollout:
    first = {f"{version}-{number}": _engine(version, replica) for number, replica in enumerate(variant.replicas)}
    later = {f"{version}-later-{number}": _engine(version, replica) for number, replica in enumerate(variant.later)}

    def endpoints(share: float) -> Mapping[str, Sequence[str]]:
        return {BASE: ["base"], version: list(later if share >= variant.from_share else first)}

    scrape = options.scrape_seconds
    rollout = LiveRollout(
        canary=version,
        platform=platform,
        prometheus=prometheus,
        settings=JudgeSettings(scrape_seconds=scrape, block_seconds=options.block_seconds, cache_warm_seconds=0.0),
        policy=RolloutPolicy(
            steps=tuple(Step(int(percent * 100)) for percent in options.steps),
            bake_seconds=options.bake_seconds,
            tick_seconds=0.05,
        ),
        endpoints=endpoints,
    )
    await asyncio.to_thread(platform.start, first | later)
    try:
        # Its series are there, at 0, before it has traffic.
        platform.route({BASE: 10_000}, endpoints=endpoints(0.0), previous={})
        await asyncio.sleep(3 * scrape)
        await rollout.run(longest_seconds=options.seconds)
        if rollout.split.get(version):
            platform.route({BASE: 10_000}, endpoints=endpoints(0.0), previous={})
        await asyncio.sleep(options.tokens * SLOW_MS / 1000)  # replies under way come to their end
        platform.route({BASE: 10_000}, endpoints={BASE: ["base"]}, previous={})
    finally:
        await asyncio.to_thread(platform.stop, first | later)
    return rollout


def _engine(version: str, replica: Replica) -> Engine:
    return Engine(
        version=version,
        step_ms=replica.step_ms,
        prefill_token_ms=replica.prefill_token_ms,
        faults=replica.faults,
    )


def _report(report: Report, case: str, rollout: LiveRollout, load: Load) -> None:
    canary, state = rollout.canary, rollout.state
    writes = rollout.platform.writes
    began = next((number for number, (_, split) in enumerate(writes) if split.get(canary)), len(writes) - 1)
    ended = next((at for at, split in writes[began:] if not split.get(canary)), time.time())
    outcome = state.outcome.value if state is not None and state.outcome is not None else "still going on"
    caught = outcome == "Rejected"
    report.measure(case, "rolled_back", float(caught), "bool")
    report.measure(case, "exposed", len(load.to(canary)), "requests")
    report.measure(case, "detection" if caught else "duration", ended - writes[began][0], "s")
    report.measure(case, "share_reached", max((split.get(canary, 0) for _, split in writes), default=0) / 100, "%")
    if caught:
        last = max((sent.at for sent in load.to(canary)), default=ended)
        report.measure(case, "verdict_to_write", (ended - rollout.decided_at) * 1000, "ms")
        report.measure(case, "write_to_last", max(0.0, last - ended) * 1000, "ms")
    if rollout.query_seconds:
        report.distribution(case, "query", [1000 * seconds for seconds in rollout.query_seconds], "ms")
        report.measure(case, "looks", len(rollout.query_seconds) / QUERIES_PER_LOOK, "count")
    verdict = rollout.verdict
    words = state.message if state is not None else ""
    print(f"{case}: {outcome}; {words}; last: {verdict.message if verdict else 'no verdict'}", flush=True)


def main() -> None:
    """Print JSON lines."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.small_platform", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--short", action="store_true", help="1 s scrapes, 4 s blocks, coarse steps and faults: under 4 minutes"
    )
    parser.add_argument("--variant", choices=list(VARIANTS), action="append", help="default: all")
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second (default: 50)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a reply (default: 64)")
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--steps", type=float, nargs="+", default=[1, 5, 25, 50, 100], help="percent")
    parser.add_argument("--bake-seconds", type=float, default=600.0)
    parser.add_argument("--scrape-seconds", type=float, default=5.0)
    parser.add_argument("--block-seconds", type=float, default=30.0)
    parser.add_argument("--history-seconds", type=float, default=60.0, help="load on v42 alone before the rollout")
    parser.add_argument("--seconds", type=float, default=3600.0, help="give up on a rollout after so long")
    parser.add_argument("--prometheus", type=Path, help="program; default: the local cluster's, built if need be")
    options = parser.parse_args()
    if options.short:
        options.scrape_seconds, options.block_seconds = 1.0, 4.0
        options.bake_seconds, options.seconds, options.history_seconds = 12.0, 50.0, 12.0
        options.steps = [10, 25, 50, 100]
    chosen = options.variant or list(VARIANTS)
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report = Report("small_platform")
    asyncio.run(measure(chosen, SHORT if options.short else VARIANTS, options=options, report=report))


if __name__ == "__main__":
    main()
