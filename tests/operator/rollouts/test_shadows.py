"""Shadow prompts asked of real HTTP engines: the answers, the artefact, silence, another prompt set."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.waiting import PATIENCE_SECONDS

from tidewheel.clients.errors import NotFound
from tidewheel.clients.resources import KubeObject, Resource
from tidewheel.operator.planning.records import ModelKey
from tidewheel.operator.planning.rollouts.evidence import ShadowOrder
from tidewheel.operator.rollouts.shadows import ShadowDesk, ShadowSettings
from tidewheel.rollout.quality.built_in import BUILT_IN
from tidewheel.rollout.quality.scoring import QualityKind, QualitySettings, QualityVerdict

KEY = ModelKey("shop", "chat")
BASE, CANARY = "127.0.0.1", "127.0.0.2"


@dataclass
class ConfigMaps:
    """As much of the API as the desk uses."""

    kept: dict[str, KubeObject] = field(default_factory=dict)

    async def get(self, _: Resource, name: str, __: str) -> KubeObject:
        if name not in self.kept:
            raise NotFound(404, "NotFound", name, call="GET")
        return self.kept[name]

    async def apply(self, _: Resource, body: KubeObject, **__: Any) -> KubeObject:
        self.kept[body["metadata"]["name"]] = body
        return body


@dataclass
class Engines:
    """Both versions behind two addresses and one port, which is how pods are reached."""

    port: int
    says: dict[str, Callable[[str], web.Response]]
    asked: list[tuple[str, dict[str, Any], str]] = field(default_factory=list)


def text(answer: str) -> web.Response:
    return web.json_response({"choices": [{"message": {"content": answer}, "finish_reason": "stop"}]})


@pytest.fixture
async def engines() -> AsyncIterator[Engines]:
    made = Engines(0, {BASE: lambda _: text("Paris."), CANARY: lambda _: text("Paris.")})

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        host = str(request.transport.get_extra_info("sockname")[0]) if request.transport else ""
        made.asked.append((host, body, request.headers.get("Authorization", "")))
        return made.says[host](body["messages"][-1]["content"])

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    first = web.TCPSite(runner, BASE, 0)
    await first.start()
    made.port = runner.addresses[0][1]
    await web.TCPSite(runner, CANARY, made.port).start()
    yield made
    await runner.cleanup()


async def verdict_of(
    engines: Engines, maps: ConfigMaps, tmp_path: Path, *, settings: QualitySettings | None = None
) -> QualityVerdict:
    token = tmp_path / "token"
    token.write_text("secret\n")
    told = asyncio.Event()
    client: Any = maps
    desk = ShadowDesk(
        client,
        token_file=token,
        settings=ShadowSettings(answer_seconds=5, retry_seconds=0.01, port=engines.port),
        may_write=lambda: True,
        on_verdict=lambda _: told.set(),
    )
    order = ShadowOrder(rollout_id="r7", settings=settings or QualitySettings(), base_host=BASE, canary_host=CANARY)
    async with desk:
        desk.follow(KEY, order)
        await asyncio.wait_for(told.wait(), PATIENCE_SECONDS)
        while "chat-rollout-quality" not in maps.kept:
            await asyncio.sleep(0.01)
        found = desk.verdict(KEY)
    assert found is not None
    return found


async def test_both_versions_are_asked_greedily_with_the_engines_token(engines: Engines, tmp_path: Path) -> None:
    maps = ConfigMaps()
    found = await verdict_of(engines, maps, tmp_path, settings=QualitySettings(max_schema_loss=1))
    assert (found.kind, found.rollout_id, found.asked) == (QualityKind.CLEAR, "r7", len(BUILT_IN))
    assert len(engines.asked) == 2 * len(BUILT_IN)
    for _, body, authorization in engines.asked:
        assert (body["temperature"], body["max_tokens"], body["model"]) == (0, 128, "chat")
        assert authorization == "Bearer secret"


async def test_a_broken_canary_is_a_breach_and_an_engineer_can_read_why(engines: Engines, tmp_path: Path) -> None:
    maps = ConfigMaps()
    engines.says[CANARY] = lambda _: text("the the the the the the the the the the the the the the")
    found = await verdict_of(engines, maps, tmp_path)
    assert found.kind is QualityKind.BREACH
    kept = json.loads(maps.kept["chat-rollout-quality"]["data"]["answers"])
    assert kept["verdict"] == "BREACH"
    assert kept["prompts"][0]["canary"].startswith("the the")
    assert kept["prompts"][0]["base"] == "Paris."


async def test_a_base_that_does_not_answer_tells_nothing_and_is_asked_again(engines: Engines, tmp_path: Path) -> None:
    engines.says[BASE] = lambda _: web.Response(status=503, text="loading")
    found = await verdict_of(engines, ConfigMaps(), tmp_path)
    assert found.kind is QualityKind.BLIND
    assert "503: loading" in found.message


async def test_a_set_of_ones_own_is_asked_instead(engines: Engines, tmp_path: Path) -> None:
    maps = ConfigMaps({"mine": {"metadata": {"name": "mine"}, "data": {"prompts": '{"prompt": "Hi"}\n'}}})
    found = await verdict_of(engines, maps, tmp_path, settings=QualitySettings(prompts="mine"))
    assert found.asked == 1
    assert {body["messages"][0]["content"] for _, body, _ in engines.asked} == {"Hi"}


async def test_a_set_that_is_not_there_is_named(engines: Engines, tmp_path: Path) -> None:
    found = await verdict_of(engines, ConfigMaps(), tmp_path, settings=QualitySettings(prompts="mine"))
    assert found.kind is QualityKind.BLIND
    assert "there is no ConfigMap mine" in found.message
