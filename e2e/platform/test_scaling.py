"""A compressed day on a real cluster: what the operator learnt says when demand comes, and it is there before.

The days before are a saved demand profile: a wave of a few minutes, again and again. Nothing of the engines is real but
the program: they answer from the simulated runner, and take a while to start.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from e2e.platform.installation import SERVING_NAMESPACE, Installation
from e2e.platform.models import Model
from e2e.platform.traffic import Load, stream
from tests.waiting import eventually

from tidewheel.cli.cluster.local_cluster import LocalCluster

# Minutes of waves: on a busy machine they say more about the machine.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]

STEP = 30
PER_DAY = 86_400 // STEP
WAVE = (20, 20, 20, 20, 20, 120, 220, 220, 220, 220, 120, 20)
"""Tokens a second in the buckets of a wave; a day holds 240 of them."""
HIGH = WAVE.index(max(WAVE))
"""The bucket in which demand is highest first."""
PER_LINE = 20
"""Tokens a second that an open request asks for at the default slo of 50 ms a token."""
START_SECONDS = 8
_SETTINGS = {
    "scaling-period-seconds": 2,
    "scaling-window-seconds": 20,
    "scaling-step-seconds": STEP,
    "cold-start-prior-seconds": 20,
    "ladder-period-seconds": 4,
    "ladder-minimum-seconds": 10,
}


@pytest.fixture(scope="module")
def scaling(tidewheel: Installation, prometheus_url: str) -> Iterator[Installation]:
    """The release with a Prometheus and a quick scaling loop."""
    arguments = ",".join(f"--{name}={value}" for name, value in _SETTINGS.items())
    tidewheel.upgrade(f"prometheus.url={prometheus_url}", f"operator.extraArgs={{{arguments}}}")
    yield tidewheel
    tidewheel.upgrade("prometheus.url=", "operator.extraArgs={}")


@pytest.fixture(autouse=True)
def alone(scaling: Installation) -> Iterator[None]:
    """The machine is for the model under test: what a test has left goes with its end."""
    yield
    scaling.kubectl("delete", "routingrules,routingtables,modelversions", "--all", "--wait=false")


def _profile(model: Model, *, origin: int) -> dict[str, Any]:
    """Two and a half days of waves; one of them begins with bucket ``origin``."""
    end = int(time.time() // STEP)
    values = [WAVE[(bucket - origin) % len(WAVE)] for bucket in range(end - 5 * PER_DAY // 2, end)]
    body = {"format": 1, "stepSeconds": STEP, "end": end, "prefill": values, "decode": values}
    metadata = {"name": f"{model.name}-demand-profile"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"profile": json.dumps(body)}}


def _version(model: Model, **scaling: Any) -> dict[str, Any]:
    # 25 ms a step + 5 ms a stream: at 50 ms a token five streams, 0.85 x 5 / 0.05 s = 85 tok/s a replica.
    arguments = ["--step-time", "25,0.01,5", "--fault", f"start-delay:{START_SECONDS}", "--max-num-seqs", "16"]
    spec = {"minReplicas": 1, "maxReplicas": 4, "spare": 0, "holdSeconds": 10, "seasons": ["daily"], **scaling}
    found = model.version("v1", replicas=None, arguments=arguments, scaling=spec)
    found["spec"]["engine"]["maxModelLen"] = 8_192
    return found


def _status(installation: Installation, model: Model) -> dict[str, Any]:
    found: dict[str, Any] = installation.get("modelversion", f"{model.name}-v1").get("status", {})
    return found


class _Witness:
    """Looks at a model twice a second while it is asked to: what was true for a moment is not missed."""

    def __init__(self, installation: Installation, model: Model) -> None:
        self._installation = installation
        self._model = model
        self.ready: list[tuple[float, int]] = []
        self.desired: list[tuple[float, int]] = []
        self.rungs: list[int] = []

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            at = time.time()
            status = await asyncio.to_thread(_status, self._installation, self._model)
            self.ready.append((at, status.get("readyReplicas", 0)))
            self.desired.append((at, status.get("desiredReplicas", 0)))
            table = await asyncio.to_thread(self._installation.get, "routingtable", self._model.name)
            self.rungs.append(table["spec"].get("rung", 0))
            await asyncio.sleep(0.5)


@asynccontextmanager
async def _lines(
    installation: Installation, model: Model, *, number: Callable[[], int], most: int
) -> AsyncIterator[Load]:
    """Replies of 40 tokens, one after another on as many lines as ``number`` says, while the block runs."""
    load, ended = Load(), asyncio.Event()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session, asyncio.TaskGroup() as group:

        async def line(index: int) -> None:
            while not ended.is_set():
                if index >= number():
                    await asyncio.sleep(0.2)
                    continue
                name = f"short-{index}-{len(load.streams)}"
                reply = await stream(session, installation.gateway_url, model.name, conversation=name, max_tokens=40)
                load.streams.append(reply)
                if reply.problem is not None:
                    await asyncio.sleep(0.5)  # as a client would

        for index in range(most):
            group.create_task(line(index))
        try:
            yield load
        finally:
            ended.set()


@asynccontextmanager
async def _long_streams(installation: Installation, model: Model, count: int) -> AsyncIterator[Load]:
    """Replies of two minutes and more that are open while the block runs, read to their ends."""
    load = Load()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session, asyncio.TaskGroup() as group:

        async def one(number: int) -> None:
            url, name = installation.gateway_url, f"long-{number}"
            load.streams.append(await stream(session, url, model.name, conversation=name, max_tokens=4_500))

        for number in range(count):
            group.create_task(one(number))
        yield load


async def test_replicas_are_ready_before_the_wave_that_history_announces_and_leave_without_cutting_a_stream(
    scaling: Installation,
) -> None:
    model = Model("tide", reply_tokens=5_000, drain_seconds=400)
    origin = int(time.time() // STEP)
    # A tenth of headroom: the highest demand asks for three replicas, whatever the margin's own errors.
    scaling.apply(_profile(model, origin=origin), _version(model, headroomPercent=10), model.rule({"v1": 100}))
    await scaling.has_split(model, {"v1": 100}, within_seconds=300)

    def phase() -> int:
        return (int(time.time() // STEP) - origin) % len(WAVE)

    high = origin + HIGH
    while high * STEP < time.time() + 45:
        high += len(WAVE)
    high_at, high_ends = high * STEP, (high + WAVE.count(max(WAVE))) * STEP
    witness = _Witness(scaling, model)
    async with witness.looking(), _lines(scaling, model, number=lambda: WAVE[phase()] // PER_LINE, most=11) as load:
        await eventually(lambda: time.time() > high_ends - STEP, within_seconds=900, every=0.5, what="the wave comes")
        first = min((at for at, ready in witness.ready if ready >= 3 and at > high_at - 3 * STEP), default=None)
        assert first is not None, witness.ready
        assert first < high_at, witness.ready
        said = _status(scaling, model)["scaling"]
        assert "are forecast" in said["message"]
        assert said["forecastBy"].startswith("profile of days")
        # Streams of minutes are open on every replica when the wave is over and the surplus leaves.
        async with _long_streams(scaling, model, 2) as open_streams:
            await eventually(
                lambda: any(at > high_ends and desired == 1 for at, desired in witness.desired),
                within_seconds=300,
                every=0.5,
                what="the surplus leaves",
            )
            assert open_streams.streams == [], "streams ended before the surplus left: nothing is shown by them"
    assert open_streams.problems == []
    assert len(open_streams.streams) == 2
    assert load.problems == []
    assert max(witness.rungs) == 0


async def test_with_prometheus_stopped_the_size_is_frozen(scaling: Installation, local_cluster: LocalCluster) -> None:
    model = Model("blind", reply_tokens=40)
    # Eight lines ask for 160 tok/s: more than two replicas with their margin, and less than two without.
    scaling.apply(_version(model, minReplicas=2), model.rule({"v1": 100}))
    await scaling.has_split(model, {"v1": 100}, within_seconds=300)
    try:
        async with _lines(scaling, model, number=lambda: 8, most=8) as load:
            await eventually(
                lambda: _status(scaling, model).get("readyReplicas", 0) >= 3,
                within_seconds=180,
                every=0.5,
                what="demand is met",
            )
            local_cluster.stop("prometheus")
        assert load.problems == []
        await eventually(
            lambda: _status(scaling, model).get("scaling", {}).get("binding") == "blind",
            within_seconds=120,
            every=1,
            what="the status says that demand is not known",
        )
        frozen = _status(scaling, model)["desiredReplicas"]
        assert frozen >= 3
        witness = _Witness(scaling, model)
        # No load any more, and nobody knows: three times the hold of 10 s passes, and the size stays.
        async with witness.looking():
            began = time.time()
            await eventually(lambda: time.time() > began + 30, within_seconds=60, every=1, what="the hold passes")
        assert {desired for _, desired in witness.desired} == {frozen}
    finally:
        local_cluster.start("prometheus")
    await eventually(
        lambda: _status(scaling, model)["desiredReplicas"] == 2,
        within_seconds=600,
        every=1,
        what="demand is known again, and the size follows it",
    )


async def test_at_the_gpu_budget_the_ladder_climbs_users_see_what_it_says_and_it_comes_down(
    scaling: Installation,
) -> None:
    model = Model("short", reply_tokens=400)
    scaling.apply(_version(model, gpuBudget=1), model.rule({"v1": 100}))
    await scaling.has_split(model, {"v1": 100}, within_seconds=300)
    witness = _Witness(scaling, model)
    async with witness.looking(), _user(scaling, model) as told:
        async with _lines(scaling, model, number=lambda: 12, most=12):
            await eventually(
                lambda: told["free_tier_suspended"] and told["retry-after"],
                within_seconds=180,
                every=0.5,
                what="a free user is refused, and told when to come back",
            )
            said = _status(scaling, model)["scaling"]
            assert said["binding"] == "GPU budget"
            assert said["shortfall"] >= 1
            assert len(scaling.pods(model)) == 1
        await eventually(lambda: witness.rungs[-1] == 0, within_seconds=600, every=1, what="the ladder comes down")
    assert told["output_reduced"], "on the rungs between, replies were shorter and said so"
    top = witness.rungs.index(max(witness.rungs))
    assert witness.rungs[top:] == sorted(witness.rungs[top:], reverse=True)
    events = scaling.kubectl("get", "events", "--output=jsonpath={.items[*].reason}", namespace=SERVING_NAMESPACE)
    assert {"LadderUp", "LadderDown"} <= set(events.split())


@asynccontextmanager
async def _user(installation: Installation, model: Model) -> AsyncIterator[Counter[str]]:
    """Somebody free who asks once a second, and counts what is said: error codes, headers, kinds of notices."""
    told: Counter[str] = Counter()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:

        async def ask() -> None:
            body = {"model": model.name, "stream": True, "messages": [{"role": "user", "content": "still there?"}]}
            while True:
                async with session.post(f"{installation.gateway_url}/v1/chat/completions", json=body) as response:
                    if response.status != 200:
                        told[(await response.json())["error"]["code"]] += 1
                        told["retry-after"] += "retry-after" in response.headers
                    else:
                        async for line in response.content:
                            if b'"tidewheel"' in line:
                                told[json.loads(line[5:])["tidewheel"]["type"]] += 1
                                break
                await asyncio.sleep(1)

        task = asyncio.create_task(ask())
        try:
            yield told
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
