"""Service levels by lane under twice the load that the replicas can take.

Real engine programs with simulated steps behind the real gateway. What is offered is fixed, whatever is answered
(open loop, Poisson arrivals). The levels to hold: paid first token p95 < 1 s, free < 2 s while admitted, time per token
p95 < 50 ms, and 99.9 % of streams without a pause over 2 s.

    offered, served, shed          requests a second by tier, over the steady part
    ttft_p50, ttft_p95, tpot_p95   of requests that were admitted
    paused_over_2s                 share of streams
"""

import argparse
import asyncio
import random
import time
from collections.abc import Mapping

import uvloop
from bench.relay.chat import Chat, chat
from bench.relay.platform import TIERS, Engine, key_of, platform
from bench.report import Report, quantile

ENGINE = Engine(step_time="20,0.02,0.1", max_num_seqs=12, reply_tokens=48)
TOKENS = 48
REPLICAS = 2
USERS = 8
SHARES: Mapping[str, float] = {"paid": 0.25, "free": 0.6, "background": 0.15}


def capacity() -> float:
    """Requests a second that the replicas can finish: slots over the time that a reply takes."""
    base, _, per_sequence = (float(part) for part in ENGINE.step_time.split(","))
    step = (base + per_sequence * ENGINE.max_num_seqs) / 1000
    return REPLICAS * ENGINE.max_num_seqs / (step * TOKENS)


async def offer(port: int, *, rate: float, seconds: float, seed: int) -> dict[str, list[Chat]]:
    """Open loop; the answers by tier, without those of the first fifth."""
    rng, began, asked = random.Random(seed), time.perf_counter(), list[tuple[str, float, asyncio.Task[Chat]]]()
    due = 0.0
    while due < seconds:
        due += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        tier = rng.choices(TIERS, weights=[SHARES[each] for each in TIERS])[0]
        messages = [{"role": "user", "content": f"{rng.random()} " + "word " * rng.randrange(20, 200)}]
        key = key_of(f"u{rng.randrange(USERS)}", tier)
        asked.append((tier, due, asyncio.ensure_future(chat(port, messages, key=key, max_tokens=TOKENS))))
    answers = await asyncio.gather(*[task for _, _, task in asked])
    return {
        tier: [answer for (of, at, _), answer in zip(asked, answers, strict=True) if of == tier and at > seconds / 5]
        for tier in TIERS
    }


def tell(report: Report, case: str, answers: Mapping[str, list[Chat]], *, seconds: float) -> None:
    """One line per figure."""
    steady = seconds * 0.8
    for tier, all_ in answers.items():
        served = [each for each in all_ if each.complete and each.token_times]
        report.measure(f"{case} {tier}", "offered", len(all_) / steady, "1/s")
        report.measure(f"{case} {tier}", "served", len(served) / steady, "1/s")
        report.measure(f"{case} {tier}", "shed", sum(each.status == 429 for each in all_) / steady, "1/s")
        if served:
            for share in (0.5, 0.95):
                ttft = quantile([each.first_token for each in served], share)
                report.measure(f"{case} {tier}", f"ttft_p{share * 100:g}", ttft * 1000, "ms")
            tpot = quantile([each.seconds_per_token for each in served], 0.95)
            report.measure(f"{case} {tier}", "tpot_p95", tpot * 1000, "ms")
    served = [each for all_ in answers.values() for each in all_ if each.token_times]
    if served:
        paused = sum(each.longest_pause > 2.0 for each in served) / len(served)
        report.measure(case, "paused_over_2s", paused * 100, "%")


async def run(*, short: bool) -> None:
    """Half of the capacity, then twice of it."""
    report, seconds = Report("gateway_lanes"), 20.0 if short else 90.0
    async with platform([ENGINE] * REPLICAS, "--free-wait-limit", "1.5", users=USERS) as port:
        report.measure("capacity", "requests_per_second", capacity(), "1/s")
        for case, factor in (("0.5x", 0.5), ("2x", 2.0)):
            rate = capacity() * factor
            answers = await offer(port, rate=rate, seconds=seconds if factor > 1 else seconds / 2, seed=7)
            tell(report, case, answers, seconds=seconds if factor > 1 else seconds / 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="about 45 seconds instead of 2.5 minutes")
    uvloop.run(run(short=parser.parse_args().short))
