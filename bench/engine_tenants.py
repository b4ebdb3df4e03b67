"""500 long generations of one tenant beside short requests of others: what do the others wait?

Scheduler, lanes, blocks and the simulated runner in virtual time: a step takes what --step-time says, nothing sleeps,
and the figures do not depend on the machine. One tenant sends 500 requests for 600 tokens at once; eight others send
short ones (64 tokens in, 32 out), together --rate a second, for --seconds.

    none            first come, first served: everybody is the same tenant, no caps
    fair            each its own tenant (virtual token counters), no caps
    capped          fair, and at most --cap requests of a tenant run at once
    capped+target   capped, and what runs at once and the chunks adapt to --tpot-ms

    first_token, per_token  of the short requests, in ms: p50, p99, max
    within_targets          share of the short requests with a first token in --ttft-ms and a token every --tpot-ms
    tokens_per_second       all that were written
"""

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from bench.report import Report

from tidewheel.engine.assembly import build_scheduler
from tidewheel.engine.engine import Engine
from tidewheel.engine.faults import Faults
from tidewheel.engine.request import Output, Request, SamplingParams
from tidewheel.engine.settings import Settings
from tidewheel.engine.simulated import StepTime, simulated_runner

SETTINGS = Settings(
    model="tenants", runner="simulated", kv_memory=16 << 30, max_num_seqs=64, max_model_len=4096,
    prefix_caching=False, max_waiting=1 << 20,
)  # fmt: skip


@dataclass(slots=True)
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass(slots=True)
class Load:
    """Requests by their arrival."""

    rate: float
    seconds: float
    long: int = 500
    long_tokens: int = 600
    names_tenants: bool = True
    short: list[Request] = field(default_factory=list)

    def arrivals(self) -> Iterator[Request]:
        draw = random.Random(7)
        for number in range(self.long):
            yield self._request(number, 100, self.long_tokens, tenant="many", at=0.0, draw=draw)
        at, number = 0.0, self.long
        while (at := at + draw.expovariate(self.rate)) < self.seconds:
            request = self._request(number, 64, 32, tenant=f"few-{number % 8}", at=at, draw=draw)
            self.short.append(request)
            number += 1
            yield request

    def _request(
        self, number: int, num_prompt: int, max_tokens: int, *, tenant: str, at: float, draw: random.Random
    ) -> Request:
        def drop(output: Output) -> None:
            pass

        return Request(
            id=number + 1, label="bench", token_ids=draw.choices(range(10, 300), k=num_prompt), num_prompt=num_prompt,
            max_tokens=max_tokens, sampling=SamplingParams(temperature=0.0, ignore_eos=True), eos_ids=frozenset(),
            lane=SETTINGS.default_lane, arrived_at=at, deliver=drop, tenant=tenant if self.names_tenants else "",
        )  # fmt: skip


def simulate(settings: Settings, load: Load, step_time: StepTime) -> float:
    """Runs until the last short request has ended; tokens written per second of the simulated time."""
    clock = Clock()
    runner, _ = simulated_runner(settings, step_time=step_time, faults=Faults.parse(()))
    runner._sleep = clock.sleep
    engine = Engine(
        runner=runner, scheduler=build_scheduler(settings, runner), deliver=lambda outputs: None, clock=clock
    )
    arrivals = load.arrivals()
    coming = next(arrivals, None)
    written = 0
    while coming is not None or not all(request.is_finished for request in load.short):
        while coming is not None and coming.arrived_at <= clock.now:
            engine.submit(coming)
            coming = next(arrivals, None)
        if not engine.has_work and coming is not None:
            clock.now = coming.arrived_at
            continue
        engine.step()
        written += len(engine.scheduler.running)
    return written / clock.now


def report_case(report: Report, case: str, load: Load, rate: float, *, ttft: float, tpot: float) -> None:
    first, each, good = [], [], 0
    for request in load.short:
        assert request.first_token_at is not None
        assert request.last_token_at is not None
        first.append(request.first_token_at - request.arrived_at)
        each.append((request.last_token_at - request.first_token_at) / (request.num_output - 1))
        good += first[-1] <= ttft and each[-1] <= tpot
    report.distribution(case, "first_token", [1000 * value for value in first], "ms")
    report.distribution(case, "per_token", [1000 * value for value in each], "ms")
    report.measure(case, "within_targets", good / len(load.short), "ratio")
    report.measure(case, "tokens_per_second", rate, "tokens/s")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.engine_tenants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="15 simulated seconds instead of 60")
    parser.add_argument("--seconds", type=float, help="in which short requests arrive")
    parser.add_argument("--rate", type=float, default=4.0, help="short requests a second")
    parser.add_argument("--cap", type=int, default=32, help="requests of a tenant that run at once")
    parser.add_argument("--ttft-ms", type=float, default=1000.0)
    parser.add_argument("--tpot-ms", type=float, default=50.0)
    parser.add_argument("--step-time", default="8,0.1,0.6", help="BASE_MS,PER_PREFILL_TOKEN_MS,PER_DECODE_SEQ_MS")
    options = parser.parse_args()
    report = Report("engine_tenants")
    tpot = options.tpot_ms / 1000
    capped = replace(SETTINGS, max_seqs_per_tenant=options.cap)
    cases = {
        "none": (SETTINGS, False),
        "fair": (SETTINGS, True),
        "capped": (capped, True),
        "capped+target": (replace(capped, tpot_target=tpot), True),
    }
    for case, (settings, names_tenants) in cases.items():
        seconds = options.seconds or (15.0 if options.short else 60.0)
        load = Load(rate=options.rate, seconds=seconds, names_tenants=names_tenants)
        rate = simulate(settings, load, StepTime.parse(options.step_time))
        report_case(report, case, load, rate, ttft=options.ttft_ms / 1000, tpot=tpot)


if __name__ == "__main__":
    main()
