"""Prompts find the replica that knows their beginning, and none gets more than its share."""

import random
import tracemalloc
from collections import Counter

import pytest

from tidewheel.gateway.load_report import LoadReport, parse_report
from tidewheel.gateway.placement.placing import Placement
from tidewheel.gateway.placement.prefix import Prefix, prefix_of
from tidewheel.gateway.placement.warmth import Warmth
from tidewheel.gateway.replicas import Replica
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.upstream import Pool

SETTINGS = Settings()
SYSTEM = "You are a helpful assistant. " * 40


def replicas(count: int) -> list[Replica]:
    return [Replica(f"pod-{number}", Pool("127.0.0.1", 1, settings=SETTINGS)) for number in range(count)]


class World:
    """Replicas, one router, and requests that stay in flight until they are let go."""

    def __init__(self, count: int, *, seed: int = 1, **settings: float) -> None:
        self.now = 1000.0
        self.replicas = replicas(count)
        self.router = Placement(
            Settings(**settings),  # type: ignore[arg-type]
            clock=lambda: self.now,
            rng=random.Random(seed),
        )

    def place(self, prefix: Prefix | None, *, tokens: int = 1000) -> Replica:
        replica = self.router.pick(self.replicas, prefix=prefix, cost=tokens)
        assert replica is not None
        replica.tokens_in_flight += tokens
        return replica

    def loads(self) -> list[int]:
        return [replica.tokens_in_flight for replica in self.replicas]


def chat(*texts: str, conversation: str | None = None, scope: str = "m") -> Prefix:
    messages = [{"role": "user" if number % 2 else "assistant", "content": text} for number, text in enumerate(texts)]
    prefix = prefix_of({"messages": messages}, scope=scope, conversation=conversation)
    assert prefix is not None
    return prefix


def test_positions_agree_as_far_as_prompts_do() -> None:
    one, two = chat(SYSTEM, "a" * 700), chat(SYSTEM, "b" * 700)
    shared = sum(mine == other for mine, other in zip(one.positions, two.positions, strict=True))
    assert shared == len(SYSTEM) // 256
    assert chat(SYSTEM, "a" * 700).positions == one.positions
    longer = chat(SYSTEM, "a" * 700, "answer", "more")
    assert longer.positions[: len(one.positions) - 1] == one.positions[:-1]


def test_one_tenant_s_prompt_says_nothing_of_another_s() -> None:
    assert not set(chat(SYSTEM, scope="m\0alice").positions) & set(chat(SYSTEM, scope="m\0bob").positions)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "x" * 1000},
        {"prompt": [1, 2, 3]},
        {"input": "x"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]},
        {"messages": [{"role": "user", "content": "\ud800"}]},
    ],
)
def test_every_form_of_a_prompt_has_a_prefix(fields: dict[str, object]) -> None:
    assert prefix_of(fields, scope="m", conversation=None) is not None


@pytest.mark.parametrize("fields", [{}, {"messages": "x"}, {"messages": [1, None]}, {"prompt": ""}])
def test_what_is_no_prompt_has_none(fields: dict[str, object]) -> None:
    assert prefix_of(fields, scope="m", conversation=None) is None


def test_the_next_turn_goes_where_the_last_one_went() -> None:
    world = World(8)
    for number in range(50):
        first = world.place(chat(SYSTEM, f"question {number} " * 50))
        first.tokens_in_flight = 0
        second = world.place(chat(SYSTEM, f"question {number} " * 50, "an answer", "and then?"))
        second.tokens_in_flight = 0
        assert second is first


def test_gateways_that_share_nothing_agree_on_named_conversations() -> None:
    """Rendezvous order is stateless: every router comes to the same answer."""
    one, other = World(8, seed=1), World(8, seed=2)
    for number in range(200):
        prefix = chat(SYSTEM, f"hello {number}", conversation=f"c{number}")
        found = [world.place(prefix) for world in (one, other)]
        for replica in found:
            replica.tokens_in_flight = 0
        assert found[0].uid == found[1].uid


def test_a_replica_that_goes_moves_only_its_own_prefixes() -> None:
    world, moved = World(8), 0
    prefixes = [chat(f"{number} " * 400, conversation=f"c{number}") for number in range(300)]

    def homes() -> list[str]:
        world.router.warmth.__init__(capacity=10, seconds=1.0)  # type: ignore[misc]
        found = []
        for prefix in prefixes:
            replica = world.place(prefix)
            replica.tokens_in_flight = 0
            found.append(replica.uid)
        return found

    before = homes()
    gone = world.replicas.pop(3).uid
    for old, new in zip(before, homes(), strict=True):
        assert old in (gone, new)
        moved += old == gone
    assert 20 <= moved <= 60


def test_one_hot_prefix_spreads_as_its_load_asks() -> None:
    """llm-d-router#355: one hot prefix at fleet load; spread >= 80 % of even."""
    world = World(8, affinity_allowance_tokens=4000.0)
    hot = chat(SYSTEM * 10)
    for _ in range(400):
        world.place(hot)
    loads = world.loads()
    assert max(loads) <= 1.25 * sum(loads) / 8 + 1000
    assert sorted(loads)[1] >= 0.8 * sum(loads) / 8


def test_a_little_of_a_hot_prefix_stays_at_home() -> None:
    world = World(8, affinity_allowance_tokens=4000.0)
    assert len({world.place(chat(SYSTEM * 10)).uid for _ in range(4)}) == 1


def test_while_one_prefix_is_hot_others_keep_their_homes() -> None:
    """vllm-router#238: A hot; requests homed at B keep hitting B."""
    world = World(6, affinity_allowance_tokens=4000.0)
    cold = [chat(f"{number} " * 500) for number in range(30)]
    homes = []
    for prefix in cold:
        replica = world.place(prefix, tokens=100)
        replica.tokens_in_flight -= 100
        homes.append(replica.uid)
    hot = chat(SYSTEM * 10)
    for _ in range(60):
        world.place(hot)
    kept = 0
    for prefix, home in zip(cold, homes, strict=True):
        replica = world.place(prefix, tokens=100)
        replica.tokens_in_flight -= 100
        kept += replica.uid == home
    assert kept >= 24


def test_overflow_goes_to_a_replica_that_is_warm() -> None:
    """sglang#32195."""
    world = World(6, affinity_allowance_tokens=3000.0)
    hot = chat(SYSTEM * 10)
    for _ in range(12):
        world.place(hot)
    warm = {replica.uid for replica in world.replicas if replica.tokens_in_flight}
    for replica in world.replicas:
        replica.tokens_in_flight = 0
    overloaded = next(replica for replica in world.replicas if replica.uid in warm)
    overloaded.tokens_in_flight = 50_000
    found = {world.place(hot).uid for _ in range(3)}
    assert found <= warm - {overloaded.uid}


def test_an_unseen_prefix_never_lands_on_an_overloaded_replica() -> None:
    world = World(4, affinity_allowance_tokens=3000.0)
    world.replicas[2].tokens_in_flight = 40_000
    found = Counter(world.place(chat(f"{number} " * 300), tokens=0).uid for number in range(200))
    assert "pod-2" not in found
    assert min(found.values()) > 20


def test_at_low_load_idle_replicas_get_the_misses() -> None:
    """edutelligence#838."""
    world, found = World(6), Counter[str]()
    for number in range(600):
        replica = world.place(chat(f"{number} " * 300))
        replica.tokens_in_flight = 0
        found[replica.uid] += 1
    assert min(found.values()) >= 60


def test_memory_that_is_nearly_full_is_no_home() -> None:
    world, prefix = World(3), chat(SYSTEM)
    home = world.place(prefix)
    home.tokens_in_flight = 0
    home.report, home.reported_at = LoadReport(10, 1000, 20, 0, 0), world.now
    assert world.place(prefix) is not home
    world.now += 10.0
    home.reported_at = world.now - 5.0
    assert world.place(prefix, tokens=1) is not None


def test_a_request_does_not_wait_in_one_engine_while_another_has_a_slot() -> None:
    """Small prompts never reach the bound in tokens: they waited at their home, and the next replica was idle."""
    world, prefix = World(2), chat(SYSTEM)
    for replica in world.replicas:
        replica.note_report(LoadReport(4, 100_000, 100_000, 0, 0), now=world.now)
    placed = list[Replica]()
    for _ in range(8):
        placed.append(world.place(prefix, tokens=50))
        placed[-1].in_flight += 1
    assert Counter(replica.uid for replica in placed) == {"pod-0": 4, "pod-1": 4}
    assert len({replica.uid for replica in placed[:4]}) == 1, "its home first"
    crowded = world.replicas[0]
    for replica in world.replicas:
        replica.in_flight = 0
    crowded.note_report(LoadReport(4, 100_000, 100_000, 3, 1), now=world.now)  # another gateway's work
    assert world.place(prefix, tokens=50) is not crowded


def test_what_a_replica_reports_counts_while_it_is_fresh() -> None:
    world = World(2, affinity_allowance_tokens=1.0)
    busy, idle = world.replicas
    busy.report, busy.reported_at = LoadReport(100, 100_000, 60_000, 4, 0), world.now
    assert world.place(None, tokens=0) is idle
    idle.tokens_in_flight = 10_000
    assert world.place(None, tokens=0) is idle, "40,000 reported tokens beside 10,000 of our own"
    world.now += 2.0
    assert world.place(None, tokens=0) is busy, "after a second only our own count is known"


def test_a_new_replica_comes_to_its_share_slowly() -> None:
    world = World(4, affinity_allowance_tokens=1.0)
    world.replicas[0].born = world.now
    shares = []
    for _ in range(2):
        for _ in range(400):
            world.place(None, tokens=100)
        shares.append(world.replicas[0].tokens_in_flight / sum(world.loads()))
        for replica in world.replicas:
            replica.tokens_in_flight = 0
        world.now += 31.0
    assert shares[0] < 0.06
    assert shares[1] == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("count", [30_000, pytest.param(10_000_000, marks=pytest.mark.long)])
def test_ever_new_prefixes_cost_bounded_memory(count: int) -> None:
    """dynamo#10774, sglang#16734: 10 M distinct prefixes."""
    warmth, rng = Warmth(capacity=4096, seconds=300.0), random.Random(1)
    tracemalloc.start()
    try:
        sizes = []
        for number in range(count):
            warmth.note((rng.getrandbits(64), rng.getrandbits(64)), f"pod-{number % 8}", now=float(number))
            if number in {count // 2, count - 1}:
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(warmth) == 4096
    assert sizes[1] < sizes[0] * 1.1
    assert sizes[1] < 4096 * 1000


@pytest.mark.parametrize(
    "body", [None, [], {}, {"max_num_seqs": 4}, {"max_num_seqs": "x"}, {"running": -1}, {"max_num_seqs": 0}]
)
def test_another_engine_s_load_is_no_report(body: object) -> None:
    assert parse_report(body) is None
