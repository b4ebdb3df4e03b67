"""The judge's looks in real, short time: against counters that grow as a Prometheus would show them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from prometheus_client import CollectorRegistry
from tests.operator.rollouts.provider import Counters
from tests.operator.rollouts.store import Store
from tests.waiting import eventually

from tidewheel.clients.prometheus import Answer
from tidewheel.clients.resources import CONFIG_MAPS
from tidewheel.crds.names import LEDGER_KEY, ledger_name
from tidewheel.operator.planning.records import ModelKey
from tidewheel.operator.planning.rollouts.evidence import JudgingOrder
from tidewheel.operator.rollouts.judging import JudgeDesk, JudgingSettings
from tidewheel.operator.rollouts.ledgers import Ledgers
from tidewheel.operator.rollouts.tallies import JudgeTallies
from tidewheel.rollout.judge.findings import VerdictKind
from tidewheel.rollout.judge.metrics import Latency
from tidewheel.rollout.judge.settings import JudgeSettings
from tidewheel.rollout.judge.steps import StepContext
from tidewheel.rollout.ledger.codec import from_text
from tidewheel.rollout.ledger.replay import replay

KEY = ModelKey("shop", "chat")
SETTINGS = JudgeSettings(
    scrape_seconds=0.05, block_seconds=0.2, max_age_scrapes=4, cache_warm_seconds=0, min_latency_blocks=2
)


class OneGateway:
    async def ready(self) -> dict[str, str]:
        return {"gateway-a": "10.0.0.1"}


def order(confirmed_at: float) -> JudgingOrder:
    context = StepContext(
        rollout_id="r1",
        step=0,
        judged_steps=1,
        canary_share=0.2,
        confirmed_at=confirmed_at,
        rollout_started_at=confirmed_at,
        slo={Latency.TPOT: 0.05, Latency.TTFT: 1.0},
    )
    ready = {"v42": 1, "v43": 1}
    return JudgingOrder(context=context, settings=SETTINGS, base="v42", canary="v43", ready=ready)


def new_store() -> Store:
    return Store(lambda: datetime.now(UTC))


async def judged(
    counters: Counters, store: Store, body: Callable[[JudgeDesk, list[ModelKey]], Awaitable[None]]
) -> None:
    told: list[ModelKey] = []
    client: Any = store
    prometheus: Any = counters
    gateways: Any = OneGateway()
    ledgers = Ledgers(client, may_write=lambda: True)
    desk = JudgeDesk(
        prometheus,
        gateways,
        ledgers,
        settings=JudgingSettings(retry_seconds=0.05),
        tallies=JudgeTallies(CollectorRegistry(), now=time.time),
        now=time.time,
        on_verdict=told.append,
    )
    async with desk:
        await body(desk, told)
    await ledgers.close()


def kind(desk: JudgeDesk) -> VerdictKind | None:
    verdict = desk.verdict(KEY)
    return verdict.kind if verdict is not None else None


async def test_a_healthy_version_is_cleared_and_every_look_is_in_the_ledger() -> None:
    store = new_store()

    async def body(desk: JudgeDesk, told: list[ModelKey]) -> None:
        desk.follow(KEY, order(time.time()))
        await eventually(lambda: kind(desk) is VerdictKind.CLEAR, what="CLEAR")
        assert told
        assert set(told) == {KEY}

    await judged(Counters(), store, body)
    kept = store.find(CONFIG_MAPS, ledger_name("chat"), "shop")
    assert kept is not None
    ledger = from_text(kept["data"][LEDGER_KEY])
    assert [look.kind for step in ledger.steps for look in step.looks if look.block][-1] is VerdictKind.CLEAR
    assert not any(look.differs for look in replay(ledger).looks)


class Remembering(Counters):
    """Also knows the moments that it was asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    async def instant(self, query: str, *, at: float) -> Answer:
        if at not in self.asked:
            self.asked.append(at)
        return await super().instant(query, at=at)


async def test_the_judge_looks_when_a_block_ends_and_not_before() -> None:
    """Found on a real cluster: looks that could tell nothing, and a verdict up to a retry late."""
    counters, confirmed_at = Remembering(), time.time()

    async def body(desk: JudgeDesk, _: list[ModelKey]) -> None:
        desk.follow(KEY, order(confirmed_at))
        await eventually(lambda: kind(desk) is VerdictKind.CLEAR, what="CLEAR")

    await judged(counters, new_store(), body)
    settled = confirmed_at + SETTINGS.settle_scrapes * SETTINGS.scrape_seconds
    assert counters.asked[0] >= settled
    assert len(counters.asked) >= 3
    gaps = [later - earlier for earlier, later in pairwise(counters.asked)]
    assert min(gaps) > SETTINGS.block_seconds - SETTINGS.scrape_seconds / 2, gaps


async def test_a_new_operator_goes_on_with_the_evidence_of_the_one_before() -> None:
    store, counters = new_store(), Counters()
    asked = order(time.time())

    async def first(desk: JudgeDesk, _: list[ModelKey]) -> None:
        desk.follow(KEY, asked)
        await eventually(lambda: kind(desk) is VerdictKind.CLEAR, what="CLEAR")

    async def second(desk: JudgeDesk, _: list[ModelKey]) -> None:
        desk.follow(KEY, asked)
        await eventually(lambda: kind(desk) is VerdictKind.CLEAR, what="CLEAR")

    await judged(counters, store, first)
    before = from_text(store.find(CONFIG_MAPS, ledger_name("chat"), "shop")["data"][LEDGER_KEY])  # type: ignore[index]
    await judged(counters, store, second)
    after = from_text(store.find(CONFIG_MAPS, ledger_name("chat"), "shop")["data"][LEDGER_KEY])  # type: ignore[index]
    assert len(after.steps) == 1, "the step began new evidence"
    assert after.steps[0].looks[: len(before.steps[0].looks)] == before.steps[0].looks
    assert len(after.steps[0].looks) > len(before.steps[0].looks)


async def test_a_failing_version_is_a_breach() -> None:
    counters = Counters()
    counters.failing = 0.2

    async def body(desk: JudgeDesk, _: list[ModelKey]) -> None:
        desk.follow(KEY, order(time.time()))
        await eventually(lambda: kind(desk) is VerdictKind.BREACH, what="BREACH")
        assert desk.verdict(KEY).reason == "ErrorRate"  # type: ignore[union-attr]

    await judged(counters, new_store(), body)


async def test_a_silent_prometheus_is_blind_and_the_judge_goes_on_when_it_is_back() -> None:
    counters = Counters()
    counters.away = "connection refused"

    async def body(desk: JudgeDesk, _: list[ModelKey]) -> None:
        desk.follow(KEY, order(time.time()))
        await eventually(lambda: kind(desk) is VerdictKind.BLIND, what="BLIND")
        assert "connection refused" in desk.verdict(KEY).message  # type: ignore[union-attr]
        counters.away = ""
        await eventually(lambda: kind(desk) is VerdictKind.CLEAR, what="CLEAR")

    await judged(counters, new_store(), body)


async def test_what_is_followed_no_more_is_judged_no_more() -> None:
    async def body(desk: JudgeDesk, told: list[ModelKey]) -> None:
        desk.follow(KEY, order(time.time()))
        await eventually(lambda: desk.verdict(KEY) is not None, what="a verdict")
        desk.follow(KEY, None)
        assert desk.verdict(KEY) is None
        heard = len(told)
        await asyncio.sleep(0.5)
        assert len(told) == heard

    await judged(Counters(), new_store(), body)
