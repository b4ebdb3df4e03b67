"""Replicas are killed and stopped under their streams: how long those pause, and whether each comes to its true end.

Real engine programs with simulated steps behind one gateway. In each round as many streams as ``streams`` says are in
the middle of their replies when one replica gets SIGKILL or, every other round, SIGSTOP. Each event must carry the next
number, and the text must be, to the letter, what an undisturbed reply says. The replica is replaced after its round.

    streams, lost, changed           of all rounds
    hit                              streams of the replica that failed: those that paused
    pause_p50, pause_p99, pause_max  longest silence of a stream that was hit, less one step

Cases: ``kill`` and ``stop``. The aims: pause p50 below 2.5 s and p99 below 5 s; nothing lost, nothing changed.
"""

import argparse
import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import uvloop
from bench.relay.following import Follower
from bench.relay.platform import Engine, running_engines
from bench.report import Report

from tidewheel.gateway.process import raise_file_limit

STEP_SECONDS = 0.2
ENGINE = Engine(step_time="200,0.02,0.05", max_num_seqs=256, kv_memory="4Gi", reply_tokens=400)
REPLICAS = 4
TOKENS = 45
BODY = {"messages": [{"role": "user", "content": "tide " * 40}], "max_tokens": TOKENS, "temperature": 0}


@dataclass
class Seen:
    """Of one kind of failure."""

    streams: int = 0
    lost: list[str] = field(default_factory=list)
    changed: int = 0
    pauses: list[float] = field(default_factory=list)


async def run(*, streams: int, kills: int) -> None:
    """``kills`` rounds."""
    raise_file_limit()
    report, seen = Report("gateway_continuation"), {"kill": Seen(), "stop": Seen()}
    async with AsyncExitStack() as opened:
        engines = await opened.enter_async_context(running_engines([ENGINE] * REPLICAS))
        port = await opened.enter_async_context(engines.gateway("--ramp-seconds", "0"))
        whole = Follower([port], BODY, resumable=False)
        await whole.ask()
        await whole.done
        for number in range(kills):
            kind = ("kill", "stop")[number % 2]
            followers = [Follower([port], BODY, resumable=False) for _ in range(streams)]
            opened.callback(close_all, followers)
            await asyncio.gather(*(follower.ask() for follower in followers))
            await asyncio.gather(*(follower.begun.wait() for follower in followers))
            await asyncio.sleep(10 * STEP_SECONDS)
            victim = number % REPLICAS
            os.kill(engines.pid(victim), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            ended = await asyncio.gather(*(follower.done for follower in followers), return_exceptions=True)
            note(seen[kind], followers, ended, text=whole.text)
            await engines.replace(victim)
        for kind, what in seen.items():
            if what.streams:
                tell(report, kind, what)


def close_all(followers: list[Follower]) -> None:
    """Go away, whatever happened."""
    for each in followers:
        each.close()


def note(seen: Seen, followers: list[Follower], ended: list[BaseException | None], *, text: str) -> None:
    """What came of one round."""
    seen.streams += len(followers)
    for follower, error in zip(followers, ended, strict=True):
        if error is not None:
            seen.lost.append(f"after event {follower.number}: {error}")
        elif follower.text != text:
            seen.changed += 1
        if follower.longest_pause > 3 * STEP_SECONDS:
            seen.pauses.append(follower.longest_pause - STEP_SECONDS)


def tell(report: Report, kind: str, seen: Seen) -> None:
    """One line per figure; what was lost, and why, on stderr."""
    for sentence in seen.lost[:5]:
        print(f"lost: {sentence}", file=sys.stderr)
    report.measure(kind, "streams", seen.streams, "count")
    report.measure(kind, "lost", len(seen.lost), "count")
    report.measure(kind, "changed", seen.changed, "count")
    report.measure(kind, "hit", len(seen.pauses), "count")
    if seen.pauses:
        report.distribution(kind, "pause", seen.pauses, "s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="2 failures (about 50 seconds) instead of 50 (15 minutes)")
    parser.add_argument("--kills", type=int, help="so many failures, 200 streams each")
    chosen = parser.parse_args()
    uvloop.run(run(streams=200, kills=chosen.kills or (2 if chosen.short else 50)))
