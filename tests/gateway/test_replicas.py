"""Which replica gets a request, and how often one may be tried again."""

import random
from collections import Counter

from tests.gateway.programs import table

from tidewheel.gateway.placement.placing import Placement
from tidewheel.gateway.replicas import Fleet, Replica, RetryBudget
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.snapshot import Snapshot, VersionKey, parse_snapshot
from tidewheel.gateway.upstream import Pool

SETTINGS = Settings()
KEY = VersionKey("default", "chat", "v1")


def replicas(*loads: int) -> list[Replica]:
    made = [Replica(f"r{number}", Pool("127.0.0.1", 1, settings=SETTINGS)) for number in range(len(loads))]
    for replica, load in zip(made, loads, strict=True):
        replica.tokens_in_flight = load
    return made


def choose(known: list[Replica], *, now: float = 0.0, tried: frozenset[str] = frozenset(), seed: int = 1) -> str | None:
    chosen = placement(now=now, seed=seed).pick(known, prefix=None, cost=1.0, tried=tried)
    return chosen.uid if chosen else None


def placement(*, now: float = 0.0, seed: int = 1) -> Placement:
    return Placement(SETTINGS, clock=lambda: now, rng=random.Random(seed))


def fleet() -> Fleet:
    return Fleet(lambda host, port: Pool(host, port, settings=SETTINGS), lambda: RetryBudget(ratio=0.1, burst=2))


def snapshot(*endpoints: object) -> Snapshot:
    body = {"tables": [table(weights={"v1": 10_000})], "endpoints": {"default/chat/v1": list(endpoints)}}
    return parse_snapshot(body, observed_at="2026-01-01T00:00:00Z")


def endpoint(uid: str, host: str = "10.0.0.1", **more: bool) -> dict[str, object]:
    return {"uid": uid, "host": host, "port": 8000, **more}


def test_the_least_loaded_ready_replica_is_chosen() -> None:
    known = replicas(3, 1, 2, 0)
    known[3].ready = False
    assert choose(known) == "r1"
    assert choose(known, tried=frozenset({"r1"})) == "r2"
    assert choose(known, tried=frozenset({"r0", "r1", "r2"})) is None


def test_ties_are_spread() -> None:
    place, known = placement(), replicas(0, 0, 0, 5)
    counts = Counter(place.pick(known, prefix=None, cost=1.0).uid for _ in range(3000))  # type: ignore[union-attr]
    assert set(counts) == {"r0", "r1", "r2"}
    assert min(counts.values()) > 900


def test_trouble_comes_last_and_is_forgotten_in_time() -> None:
    known = replicas(9, 0, 0)
    known[1].press_back(now=0.0, seconds=1.0)
    known[2].suspend(now=0.0, seconds=1.0)
    assert choose(known, now=0.5) == "r0"
    assert choose(known, now=0.5, tried=frozenset({"r0"})) == "r1"
    assert choose(known, now=0.5, tried=frozenset({"r0", "r1"})) == "r2"
    assert choose(known, now=1.5) in {"r1", "r2"}


def test_an_unreachable_replica_is_avoided_longer_each_time_and_trusted_after_an_answer() -> None:
    (replica,) = replicas(0)
    waits = []
    for _ in range(7):
        replica.suspend(now=0.0, seconds=0.5)
        waits.append(replica.suspended_until)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    replica.answered()
    assert replica.hindrance(0.0) == 0
    replica.suspend(now=0.0, seconds=0.5)
    assert replica.suspended_until == 0.5


def test_a_replica_in_doubt_is_tried_by_one_request_at_a_time() -> None:
    """Guide 9: recovery by single probes; a crowd would wait for a connection that may never come."""
    known = replicas(5, 0)
    known[1].suspend(now=0.0, seconds=0.5)
    assert choose(known, now=0.4) == "r0"
    assert choose(known, now=0.6) == "r1"
    with known[1].occupied(now=0.6, probe_seconds=1.0):
        assert choose(known, now=0.7) == "r0"
        known[1].answered()
        assert choose(known, now=0.7) == "r1"


def test_the_retry_budget_is_a_share_of_requests_above_a_burst() -> None:
    budget = RetryBudget(ratio=0.1, burst=3)
    granted = 0
    for _ in range(1000):
        budget.deposit()
        granted += budget.withdraw()
    assert 100 <= granted <= 103


def test_terminating_and_unready_endpoints_take_nothing_new() -> None:
    """production-stack#601."""
    known = fleet()
    for one in (endpoint("a", terminating=True), endpoint("a", ready=False)):
        known.apply(snapshot(one))
        assert not known.has_ready(KEY)
    known.apply(snapshot(endpoint("a")))
    assert known.has_ready(KEY)


def test_where_every_probe_fails_those_that_were_ready_are_asked_and_nobody_else() -> None:
    """A busy kubelet once failed all probes of a version, and its share of traffic with them."""
    known = fleet()
    known.apply(snapshot(endpoint("a"), endpoint("b"), endpoint("new", ready=False)))
    known.apply(snapshot(endpoint("a", ready=False), endpoint("b"), endpoint("new", ready=False)))
    assert choose(known.replicas(KEY)) == "b"
    known.apply(snapshot(endpoint("a", ready=False), endpoint("b", ready=False), endpoint("new", ready=False)))
    assert not known.has_ready(KEY)
    assert {choose(known.replicas(KEY), seed=seed) for seed in range(20)} == {"a", "b"}
    known.apply(snapshot(endpoint("a", ready=False, terminating=True), endpoint("new", ready=False)))
    assert choose(known.replicas(KEY)) is None


def test_a_replica_keeps_its_load_while_its_address_changes_and_loses_it_with_its_uid() -> None:
    """sglang#30270: entries are keyed by uid, because addresses are used again."""
    known = fleet()
    known.apply(snapshot(endpoint("a"), endpoint("b", "10.0.0.2")))
    first, second = known.replicas(KEY)
    first.in_flight, second.in_flight = 5, 3
    known.apply(snapshot(endpoint("a", "10.0.0.9"), endpoint("c", "10.0.0.2")))
    again, other = known.replicas(KEY)
    assert again is first
    assert again.pool.address == ("10.0.0.9", 8000)
    assert (other.uid, other.in_flight) == ("c", 0)
    assert not second.ready


def test_a_version_that_is_gone_has_no_replicas() -> None:
    known = fleet()
    known.apply(snapshot(endpoint("a")))
    known.budget(KEY)
    known.apply(Snapshot())
    assert known.replicas(KEY) == []
