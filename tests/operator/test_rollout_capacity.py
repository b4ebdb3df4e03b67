"""Two versions and too few GPUs for both, on a real API server: refused with both ways out, then one makes room."""

import pytest
from tests.operator.rollouts.provider import Counters
from tests.operator.test_rollouts import ROLLOUT, rollout, rollout_world
from tests.operator.world import World, eventually

from tidewheel.clients.kubernetes import ROUTING_RULES, ROUTING_TABLES
from tidewheel.clients.resources import EVENTS

pytestmark = pytest.mark.component

PLACES = 3


async def _apply_rule(world: World, on_capacity: str) -> None:
    spec = {
        "model": "chat",
        "traffic": [{"version": "v42", "percent": 0}, {"version": "v43", "percent": 100}],
        "rollout": {**ROLLOUT, "onCapacity": on_capacity},
    }
    body = {"metadata": {"name": "chat", "namespace": world.namespace}, "spec": spec}
    await world.client.apply(ROUTING_RULES, body, force=True)


async def test_what_does_not_fit_is_refused_and_replace_makes_room_for_it(world: World) -> None:
    world.kubelet.places = PLACES
    async with rollout_world(world, Counters(), replicas=2, gpu_budget=str(PLACES)) as made:
        await _apply_rule(world, "Surge")

        async def refused() -> bool:
            found = await world.rule_condition("chat", "Stalled")
            assert found.get("status") == "True", found
            assert found["reason"] == "DoesNotFit"
            assert "set rollout.onCapacity: Replace" in found["message"]
            return True

        await eventually(refused, "what does not fit is refused")
        assert await world.split() == {"v42": 10_000}
        await _apply_rule(world, "Replace")

        async def promoted() -> bool:
            table = await world.find(ROUTING_TABLES, "chat")
            if table is not None:
                made.obey(table)
            seen = await rollout(world)
            assert seen.get("outcome") == "Promoted", (seen, await world.split())
            assert seen["to"] == {"v43": 10_000}
            return await world.settled({"v43": 10_000}, v42=0, v43=2)

        await eventually(promoted, "one version has made room for the other", within=240)
        reasons = {event["reason"] for event in (await world.client.list(EVENTS, world.namespace)).items}
        assert {"DoesNotFit", "RolloutStarted", "MakingRoom", "Promoted"} <= reasons
        armed = await world.rule_condition("chat", "RollbackArmed")
        assert armed["status"] == "False"
