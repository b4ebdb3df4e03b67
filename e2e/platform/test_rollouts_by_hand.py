"""`kubectl rollback` and rollouts: during one, after one, and before one has moved anything."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e.platform.installation import SERVING_NAMESPACE, Installation
from e2e.platform.rollouts import FIRST_STEP, Rollout, rollout_of

_PLUGIN = Path(sys.executable).with_name("kubectl-rollback")

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def _roll_back(rollout: Rollout, *arguments: str) -> str:
    kubeconfig = str(rollout.installation.cluster.kubeconfig)
    # An outer limit alone: that it is quick is for `python -m bench.rollback_latency` to say.
    options = ["-n", SERVING_NAMESPACE, "--kubeconfig", kubeconfig, "--timeout", "60", *arguments]
    command = [str(_PLUGIN), rollout.model.name, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_a_rollback_during_a_rollout_ends_it_and_rejects_the_new_version(judged: Installation) -> None:
    rollout = rollout_of(judged, "cancelled", bakeSeconds=600)
    await rollout.serve(rollout.version("v2"))
    async with rollout.load() as load:
        await rollout.start(load)
        await rollout.until("judged", lambda seen: bool(seen.get("metrics")))
        said = _roll_back(rollout, "--reason", "I do not like it")
        back_at = time.monotonic()
        ended = await rollout.until_outcome("RolledBack")
        await rollout.more_load(load)
    assert f"rolled back from v1:{100 - FIRST_STEP}% v2:{FIRST_STEP}% to v1:100%: I do not like it" in said
    assert "2 of 2 gateways obey" in said
    assert load.problems == []
    assert load.versions["v2"] > 0
    assert {stream.version for stream in load.streams if stream.began > back_at} == {"v1"}
    assert rollout.rejected() == [("v2", ended["canaryDigest"])]
    # The rule still names it, and stays without it.
    await rollout.until_condition("Degraded", "VersionRejected")
    assert judged.weights(rollout.model) == {"v1": 10_000}


async def test_a_rollback_after_a_promotion_returns_to_the_version_that_is_kept_warm(judged: Installation) -> None:
    rollout = rollout_of(judged, "regretted", keepPreviousSeconds=600)
    await rollout.serve(rollout.version("v2"))
    async with rollout.load() as load:
        await rollout.start(load)
        promoted = await rollout.until_outcome("Promoted")
        said = _roll_back(rollout)
        back_at = time.monotonic()
        await rollout.until_condition("Degraded", "VersionRejected")
        await rollout.more_load(load)
    assert "rolled back from v2:100% to v1:100%" in said
    assert load.problems == []
    assert {stream.version for stream in load.streams if stream.began > back_at} == {"v1"}
    assert rollout.rejected() == [("v2", promoted["canaryDigest"])]
    assert judged.weights(rollout.model) == {"v1": 10_000}


async def test_a_rollback_before_the_first_weight_keeps_the_split_in_force(judged: Installation) -> None:
    """The table's previous split is then an older one, and going back to it would be a second mistake."""
    rollout = rollout_of(judged, "unborn", keepPreviousSeconds=600)
    older = rollout.version("v0")
    judged.apply(older, rollout.model.rule({"v0": 100}))
    await judged.has_split(rollout.model, {"v0": 100})
    judged.apply(rollout.version("v1"), rollout.model.rule({"v1": 100}))
    await judged.has_split(rollout.model, {"v1": 100})
    judged.apply(rollout.version("v2", engine={"image": "tidewheel-engine:dev", "args": ["--no-such-argument"]}))
    rollout.want("v2")
    await rollout.until("waiting for replicas", lambda seen: seen.get("phase") == "WaitingForCapacity")
    async with rollout.load() as load:
        said = _roll_back(rollout)
        ended = await rollout.until_outcome("RolledBack")
        await rollout.more_load(load)
    assert "rolled back before v2 got traffic; v1:100% stays" in said
    assert load.problems == []
    assert set(load.versions) == {"v1"}
    assert judged.weights(rollout.model) == {"v1": 10_000}
    assert rollout.rejected() == [("v2", ended["canaryDigest"])]
