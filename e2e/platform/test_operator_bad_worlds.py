"""Good object, bad world, on a real kubelet: the status says which, in words that name the fix; others serve on."""

from __future__ import annotations

import time
from typing import Any

import pytest
from e2e.platform.installation import Installation
from e2e.platform.models import Model
from e2e.platform.traffic import steady_load
from tests.waiting import eventually

WORLDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "artefact missing": ({"artifact": {"uri": "file:///nowhere/m.gguf"}}, "EngineCannotStart", "/nowhere/m.gguf"),
    "wrong sha256": (
        {"artifact": {"uri": "file:///models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "sha256": "0" * 64}},
        "EngineCannotStart",
        "sha256",
    ),
    # Nobody listens there: how long a silent registry takes to fail is the container runtime's affair.
    "image missing": (
        {"engine": {"image": "localhost:1/none:1"}},
        "ImagePullFailed",
        "spec.engine.image",
    ),
    "no GPU left": ({"replica": {"gpus": 64, "cpu": "20m", "memory": "256Mi"}}, "NoGpuFree", "64 nvidia.com/gpu"),
    "dies on start": (
        {"engine": {"image": "tidewheel-engine:dev", "args": ["--no-such-argument"]}},
        "CrashLoop",
        "no-such-argument",
    ),
}


@pytest.mark.parametrize("world", WORLDS)
async def test_the_status_names_trouble_and_fix_and_the_other_version_serves_on(
    tidewheel: Installation, world: str
) -> None:
    spec, reason, words = WORLDS[world]
    model = Model(world.lower().replace(" ", "-"))
    await tidewheel.serve(model, {"v1": 100})
    async with steady_load(tidewheel.gateway_url, model.name) as load:
        applied = time.monotonic()
        tidewheel.apply(model.version("v2", **spec), model.rule({"v1": 50, "v2": 50}))

        def said() -> bool:
            found = tidewheel.condition("modelversion", f"{model.name}-v2", "Degraded")
            return found.get("reason") == reason and words in found["message"]

        await eventually(said, within_seconds=60, every=0.5, what=f"{model.name}-v2 says {reason}")
        print(f"{reason}: said after {time.monotonic() - applied:.1f} s")
        awaited = tidewheel.condition("routingrule", model.name, "Reconciling")
        assert awaited["reason"] == "WaitingForReplicas"
        assert tidewheel.weights(model) == {"v1": 10_000}
    assert load.problems == []
    tidewheel.kubectl("delete", "modelversion", f"{model.name}-v2", "--wait=false")
