"""A gateway is killed under its streams: what those see who reconnect to another one.

Two gateways share a real redis-server; half of the streams run through each when one gets SIGKILL. Every client of it
reconnects to the other at once with the number of its last event. Each event must be the next one, and at the end what
each client was shown is compared, byte for byte, with the log that the surviving gateway has, and its text with the
text that the engine would have written undisturbed.

    resumed, lost, changed     streams of the killed gateway: went on to their end, did not, did with another byte
    gap_p50, gap_p99, gap_max  seconds from the reconnect to the next event
    longest_pause_of_the_other_gateway_p99   what the streams that were on the surviving gateway saw of it
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from contextlib import AsyncExitStack

import uvloop
from bench.relay.following import Follower
from bench.relay.processes import gateway, token_engine
from bench.relay.redis_process import redis_server
from bench.relay.token_engine import whole_text
from bench.report import Report, quantile

from tidewheel.gateway.process import raise_file_limit

RATE = 1.0  # words a second of a stream


async def run(*, streams: int, tokens: int, lease_seconds: float, pause: float) -> None:
    """One kill."""
    raise_file_limit()
    report = Report("gateway_takeover")
    async with AsyncExitStack() as opened:
        url = await opened.enter_async_context(redis_server())
        engine = await opened.enter_async_context(token_engine(rate=RATE))
        arguments = ("--no-access-log", "--redis-url", url, "--lease-seconds", str(lease_seconds))
        (dying, process), (living, _) = [
            await opened.enter_async_context(gateway(engine, *arguments)) for _ in range(2)
        ]
        body = {"messages": [{"role": "user", "content": "x" * 2000}], "max_tokens": tokens}
        mine = [Follower([dying, living], body, pause=pause) for _ in range(streams // 2)]
        others = [Follower([living], body) for _ in range(streams - streams // 2)]
        opened.callback(close_all, [*mine, *others])
        await begin([*mine, *others])
        killed_at = time.perf_counter()
        os.kill(process, signal.SIGKILL)
        ended = await asyncio.gather(*(each.done for each in (*mine, *others)), return_exceptions=True)
        report.measure("takeover", "streams", streams, "count")
        tell(report, mine, ended[: len(mine)], tokens=tokens)
        lost = sum(error is not None for error in ended[len(mine) :])
        report.measure("takeover", "lost_of_the_other_gateway", lost, "count")
        pauses = [each.longest_pause for each in others]
        report.measure("takeover", "longest_pause_of_the_other_gateway_p99", quantile(pauses, 0.99), "s")
        report.measure("takeover", "seconds_from_kill_to_end", time.perf_counter() - killed_at, "s")
        changed = await count_changed([*mine, *others], living, tokens=tokens)
        report.measure("takeover", "changed", changed, "count")


def close_all(followers: list[Follower]) -> None:
    """Go away, whatever happened."""
    for each in followers:
        each.close()


async def begin(followers: list[Follower]) -> None:
    """Ask for all, a few at a time, until each has shown something."""
    door = asyncio.Semaphore(50)

    async def one(follower: Follower) -> None:
        async with door:
            await follower.ask()
            await follower.begun.wait()

    await asyncio.gather(*map(one, followers))


def tell(report: Report, followers: list[Follower], ended: list[BaseException | None], *, tokens: int) -> None:
    """Of those whose gateway died."""
    for error in [error for error in ended if error is not None][:3]:
        print(f"lost: {error}", file=sys.stderr)
    resumed = [each for each, error in zip(followers, ended, strict=True) if error is None and each.resumed]
    report.measure("takeover", "resumed", len(resumed), "count")
    report.measure("takeover", "lost", sum(error is not None for error in ended), "count")
    gaps = [each.gap for each in resumed if each.gap is not None]
    if gaps:
        report.distribution("takeover", "gap", gaps, "s")


async def count_changed(followers: list[Follower], port: int, *, tokens: int) -> int:
    """How many were shown another byte than the log has, or another text than the engine's."""
    changed, door = 0, asyncio.Semaphore(50)

    async def one(follower: Follower) -> bool:
        async with door:
            again = Follower([port], {})
            again.reply_id = follower.reply_id
            again.resumed = -1
            await again._resume()
            await again.done
            return again.shown != follower.shown or follower.text != whole_text(tokens)

    complete = [each for each in followers if each.done.done() and each.done.exception() is None]
    for answer in await asyncio.gather(*map(one, complete)):
        changed += answer
    return changed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="400 streams (about 35 seconds) instead of 2,000 (90)")
    parser.add_argument("--lease-seconds", type=float, default=1.0, help="the gateways' setting of this name")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that a client waits before it reconnects")
    chosen = parser.parse_args()
    count, length = (400, 25) if chosen.short else (2000, 60)
    uvloop.run(run(streams=count, tokens=length, lease_seconds=chosen.lease_seconds, pause=chosen.pause))
