"""What users see while parts of the control plane are away: nothing."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest
from e2e.platform.installation import Installation
from e2e.platform.models import Model
from e2e.platform.traffic import steady_load
from tests.waiting import eventually

from tidewheel.cli.cluster.local_cluster import LocalCluster

OUTAGE_SECONDS = 60


@pytest.mark.timeout(400)
async def test_an_api_server_away_for_a_minute_costs_no_request_and_no_pod(
    tidewheel: Installation, local_cluster: LocalCluster
) -> None:
    model = Model("outage")
    await tidewheel.serve(model, {"v1": 50, "v2": 50})
    before = tidewheel.pod_uids(model)
    async with steady_load(tidewheel.gateway_url, model.name) as load:
        await eventually(lambda: len(load.streams) > 20, what="load is flowing")
        local_cluster.stop("kube-apiserver", sig=signal.SIGKILL)
        try:
            served = len(load.streams)
            # Not awaiting a condition: the outage's length is what is tested.
            await asyncio.sleep(OUTAGE_SECONDS)
            assert len(load.streams) > served + 20, "load did not go on during the outage"
        finally:
            local_cluster.start("kube-apiserver")
        local_cluster.assembly.plane.await_ready()
        returned = time.monotonic()
        tidewheel.apply(model.version("v1", replicas=2))
        await eventually(
            lambda: len(tidewheel.pods(model, "v1")) == 2,
            within_seconds=max(0.1, 5 - (time.monotonic() - returned)),
            every=0.2,
            what="the change made on its return is applied",
        )
    assert load.problems == []
    assert before <= tidewheel.pod_uids(model)


async def test_operators_away_cost_no_request(tidewheel: Installation) -> None:
    model = Model("headless")
    await tidewheel.serve(model, {"v1": 100})
    async with tidewheel.without_operators(), steady_load(tidewheel.gateway_url, model.name) as load:
        await eventually(lambda: len(load.streams) > 50, what="load goes on", within_seconds=30)
    assert load.problems == []
