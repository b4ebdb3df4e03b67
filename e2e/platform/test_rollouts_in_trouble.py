"""Rollouts while what they stand on fails: the operator, Prometheus, the new version, the old one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from e2e.platform.containers import kill_container, leading_operator, lease_holder
from e2e.platform.history import SplitHistory
from e2e.platform.installation import Installation
from e2e.platform.rollouts import FIRST_STEP, rollout_of
from tests.waiting import eventually

from tidewheel.cli.cluster.local_cluster import LocalCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.timeout(900)
async def test_an_operator_killed_in_each_step_is_followed_by_one_that_goes_on(
    judged: Installation, local_cluster: LocalCluster
) -> None:
    rollout = rollout_of(judged, "orphaned")
    await rollout.serve(rollout.version("v2"))
    ids = set()
    with rollout.history() as history:
        async with rollout.load() as load:
            await rollout.has_history(load)
            rollout.want("v2")
            for share in (100 * FIRST_STEP, 5000):
                await _has_been_given(history, share)
                await _kill_the_leader(judged)
                ids.add(rollout.status()["id"])
            ids.add((await rollout.until_outcome("Promoted"))["id"])
            await rollout.more_load(load, 50)
    assert load.problems == []
    assert len(ids) == 1, "it went on, and did not begin again"
    shares = history.shares("v2")
    assert [after for before, after in pairwise(shares) if after < before] == []
    assert set(shares) == {0, 100 * FIRST_STEP, 5000, 10_000}


async def _has_been_given(history: SplitHistory, share: int) -> None:
    await eventually(lambda: share in history.shares("v2"), within_seconds=240, what=f"a step of {share}")


async def _kill_the_leader(installation: Installation) -> None:
    """kill -9, and another one leads: the other pod's, or the same pod's next."""
    killed = lease_holder(installation)
    kill_container(leading_operator(installation))
    await eventually(
        lambda: lease_holder(installation) != killed, within_seconds=120, every=0.5, what="another operator leads"
    )


async def test_prometheus_stopped_in_mid_bake_holds_the_step_until_it_is_back(
    judged: Installation, local_cluster: LocalCluster
) -> None:
    rollout = rollout_of(judged, "unseen", bakeSeconds=60)
    await rollout.serve(rollout.version("v2"))
    with rollout.history() as history:
        async with rollout.load() as load:
            await rollout.start(load)
            await rollout.until("in mid-bake", lambda seen: seen.get("bakedSeconds", 0) > 0)
            local_cluster.stop("prometheus")
            try:
                blind = await rollout.until("blind", lambda seen: seen.get("verdict") == "BLIND")
                told = await rollout.until_condition("Degraded", "Blind")
                later = rollout.status()
                assert judged.weights(rollout.model) == {"v1": 10_000 - 100 * FIRST_STEP, "v2": 100 * FIRST_STEP}
            finally:
                local_cluster.start("prometheus")
            promoted = await rollout.until_outcome("Promoted")
    print(told["message"])
    assert load.problems == []
    assert later["bakedSeconds"] == blind["bakedSeconds"], "time in which nothing can be seen counts for nothing"
    assert promoted["id"] == blind["id"]
    assert history.shares("v2") == sorted(history.shares("v2"))


async def test_a_version_that_never_becomes_ready_gets_no_traffic_and_is_not_blamed_for_ever(
    judged: Installation,
) -> None:
    rollout = rollout_of(judged, "stillborn", capacityDeadlineSeconds=5)
    broken = rollout.version("v2", engine={"image": "tidewheel-engine:dev", "args": ["--no-such-argument"]})
    await rollout.serve(broken, rollout.version("v3"))
    with rollout.history() as history:
        async with rollout.load() as load:
            await rollout.has_history(load)
            rollout.want("v2")
            stalled = await rollout.until_condition("Stalled", "InsufficientCapacity")
            await rollout.more_load(load)
            assert judged.weights(rollout.model) == {"v1": 10_000}
            assert rollout.rejected() == [], "what did not start has not been judged"
            # The way out is another version, with the rollout of the first still waiting.
            rollout.want("v3")
            await rollout.until("promoted", lambda seen: seen.get("outcome") == "Promoted")
    print(stalled["message"])
    assert load.problems == []
    assert set(load.versions) == {"v1", "v3"}
    assert set(history.shares("v2")) == {0}
    assert judged.weights(rollout.model) == {"v3": 10_000}


async def test_a_base_that_dies_in_mid_rollout_leaves_all_traffic_to_the_version_that_lives(
    judged: Installation,
) -> None:
    rollout = rollout_of(judged, "widowed", bakeSeconds=600, baseDownSeconds=5)
    await rollout.serve(rollout.version("v2"))
    async with rollout.load() as load:
        await rollout.start(load)
        await rollout.until("judged", lambda seen: bool(seen.get("metrics")))
        with _no_new_pods(judged):
            judged.kubectl(
                "delete", "pods", f"--selector=tidewheel.dev/model={rollout.model.name},tidewheel.dev/version=v1",
                "--grace-period=0", "--force",
            )  # fmt: skip
            ended = await rollout.until_outcome("FastPromoted")
            moved = len(load.streams)
            await rollout.more_load(load)
    assert ended["reason"] == "BaseDown"
    assert judged.weights(rollout.model) == {"v2": 10_000}
    assert rollout.rejected() == []
    late = load.streams[moved + 50 :]
    assert {(stream.version, stream.problem) for stream in late} == {("v2", None)}
    # Meanwhile the old version's conversations were told so, in words, and nobody else was.
    assert {stream.version for stream in load.streams if stream.problem} <= {"", "v1"}


@contextmanager
def _no_new_pods(installation: Installation) -> Iterator[None]:
    """No node takes another pod."""
    nodes = [node["metadata"]["name"] for node in installation.get("nodes")["items"]]
    installation.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        installation.kubectl("uncordon", *nodes)
