"""Prefix affinity against random and least-loaded choice of a replica, on conversations of several turns.

Real engine programs with real block caches and simulated steps (prefill costs 0.3 ms a token that is not cached). Their
caches together hold all conversations, one alone holds a part. Users think between turns; system prompts are shared.

    hit_rate               share of prompt tokens that the engines had cached, by their own count
    ttft_p50, ttft_p95     time to the first token of turns after the first

Cases: ``POLICY busy`` is all conversations at once, ``POLICY low`` a few at a time.
"""

import argparse
import asyncio
import random

import uvloop
from bench.relay.chat import Chat, chat
from bench.relay.platform import Engine, key_of, platform
from bench.report import Report, quantile

ENGINE = Engine(step_time="8,0.3,0.1", max_num_seqs=16, kv_memory="600Mi", reply_tokens=24)
REPLICAS = 4
SYSTEMS = 4


async def converse(port: int, number: int, *, turns: int, think: float) -> list[Chat]:
    """One conversation: each turn sends all that was said so far."""
    rng = random.Random(number)
    words = ["tide", "wheel", "moon", "shore", "engine", "light", "sand", "wave"]
    system = " ".join(random.Random(number % SYSTEMS).choices(words, k=400))
    messages, seen = [{"role": "system", "content": system}], list[Chat]()
    await asyncio.sleep(rng.random() * think)
    for _ in range(turns):
        messages.append({"role": "user", "content": " ".join(rng.choices(words, k=120))})
        answer = await chat(port, messages, key=key_of(f"u{number % 8}", "paid"), max_tokens=24)
        if not answer.complete:
            raise RuntimeError(f"a turn failed with status {answer.status}")
        seen.append(answer)
        messages.append({"role": "assistant", "content": answer.text})
        await asyncio.sleep(rng.expovariate(1 / think))
    return seen


async def measure(report: Report, policy: str, load: str, *, conversations: int, turns: int, at_once: int) -> None:
    """One policy at one load, on fresh caches."""
    async with platform([ENGINE] * REPLICAS, "--placement", policy) as port:
        door = asyncio.Semaphore(at_once)

        async def one(number: int) -> list[Chat]:
            async with door:
                return await converse(port, number, turns=turns, think=0.5)

        all_ = await asyncio.gather(*map(one, range(conversations)))
    turns_seen = [turn for conversation in all_ for turn in conversation]
    later = [turn.first_token for conversation in all_ for turn in conversation[1:]]
    case = f"{policy} {load}"
    prompt = sum(turn.prompt_tokens for turn in turns_seen)
    report.measure(case, "hit_rate", 100 * sum(turn.cached_tokens for turn in turns_seen) / prompt, "%")
    for share in (0.5, 0.95):
        report.measure(case, f"ttft_p{share * 100:g}", quantile(later, share) * 1000, "ms")


async def run(*, short: bool) -> None:
    """Every policy at both loads."""
    report = Report("prefix_affinity")
    size = {"conversations": 24, "turns": 4} if short else {"conversations": 120, "turns": 6}
    for load, at_once in (("busy", size["conversations"]), ("low", 4)):
        for policy in ("random", "least-loaded", "affinity"):
            await measure(report, policy, load, at_once=at_once, **size)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="about two minutes instead of ten")
    uvloop.run(run(short=parser.parse_args().short))
