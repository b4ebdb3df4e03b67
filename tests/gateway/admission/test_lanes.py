"""Order of those who wait: lanes, fairness inside one, guaranteed shares, position and ETA."""

import random
from collections import Counter

from tidewheel.gateway.admission.eta import Drain, Queue, QuoteErrors, lane_rate
from tidewheel.gateway.admission.lanes import Lanes, Ticket


def ticket(lane: str = "free", user: str = "a", cost: float = 100.0) -> Ticket:
    return Ticket(lane, user, cost, 0.0)


def served(lanes: Lanes, count: int) -> list[Ticket]:
    out = list[Ticket]()
    while len(out) < count and (head := lanes.peek()) is not None:
        assert lanes.peek() is head, "looking twice changes nothing"
        lanes.serve(head)
        out.append(head)
    return out


def test_paid_goes_before_free_before_background() -> None:
    lanes = Lanes()
    for lane in ("background", "free", "paid"):
        lanes[lane].push(ticket(lane))
    assert [each.lane for each in served(lanes, 3)] == ["paid", "free", "background"]


def test_an_endless_high_lane_leaves_lower_ones_their_share() -> None:
    """llm-d-router#1995: background progresses at its floor."""
    lanes, tokens = Lanes(), Counter[str]()
    for lane in ("free", "background"):
        for _ in range(200):
            lanes[lane].push(ticket(lane))
    for _ in range(1000):
        lanes["paid"].push(ticket("paid"))
        [each] = served(lanes, 1)
        tokens[each.lane] += 1
    assert 80 <= tokens["free"] <= 120
    assert 20 <= tokens["background"] <= 40


def test_users_of_a_lane_share_by_tokens_whatever_the_size_of_their_requests() -> None:
    lanes, tokens = Lanes(), Counter[str]()
    for _ in range(2000):
        lanes["free"].push(ticket(user="small", cost=50.0))
    for _ in range(100):
        lanes["free"].push(ticket(user="large", cost=1000.0))
    for each in served(lanes, 800):
        tokens[each.user] += int(each.cost)
    assert 0.85 <= tokens["small"] / tokens["large"] <= 1.15


def test_a_user_who_was_away_has_saved_nothing() -> None:
    lanes = Lanes()
    for _ in range(50):
        lanes["free"].push(ticket(user="a"))
    served(lanes, 40)
    for _ in range(50):
        lanes["free"].push(ticket(user="b"))
    users = Counter(each.user for each in served(lanes, 20))
    assert users["a"] >= 8


def test_one_user_with_a_thousand_requests_delays_another_by_one_turn() -> None:
    lanes = Lanes()
    for _ in range(1000):
        lanes["free"].push(ticket(user="flood"))
    late = ticket(user="late")
    lanes["free"].push(late)
    assert late in served(lanes, 3)


def test_a_large_request_among_small_ones_has_its_turn() -> None:
    lanes = Lanes()
    large = ticket(user="large", cost=50_000.0)
    lanes["free"].push(large)
    for number in range(3000):
        lanes["free"].push(ticket(user=f"u{number % 10}", cost=20.0))
    order = served(lanes, 4000)
    assert large in order
    assert len(order) == 3001


def test_costs_are_exact_when_all_is_over() -> None:
    rng, lanes = random.Random(1), Lanes()
    waiting = list[Ticket]()
    for _ in range(2000):
        if rng.random() < 0.55 or not waiting:
            each = ticket(rng.choice(["paid", "free", "background"]), f"u{rng.randrange(9)}", rng.randrange(1, 900))
            lanes[each.lane].push(each, front=rng.random() < 0.05)
            waiting.append(each)
        elif rng.random() < 0.5:
            each = waiting.pop(rng.randrange(len(waiting)))
            assert lanes.remove(each)
            assert not lanes.remove(each)
        else:
            [each] = served(lanes, 1)
            waiting.remove(each)
        assert len(lanes) == len(waiting)
    served(lanes, len(waiting))
    assert [(len(lane), lane.cost, list(lane)) for lane in lanes] == [(0, 0.0, [])] * 3


def test_position_counts_turns_and_not_ranks() -> None:
    """Ahead of the k-th item: own earlier ones, and of each other user at most k."""
    lanes = Lanes()
    for _ in range(100):
        lanes["free"].push(ticket(user="flood"))
    for _ in range(2):
        lanes["free"].push(ticket(user="mine"))
    lanes["paid"].push(ticket("paid", "other", 500.0))
    new = ticket(user="mine")
    assert Queue(lanes, "free").ahead(new) == (2 + 3 + 1, 200.0 + 300.0 + 500.0)
    stranger = ticket(user="stranger")
    assert Queue(lanes, "free").ahead(stranger) == (1 + 1 + 1, 100.0 + 100.0 + 500.0)


def test_position_is_close_to_what_comes_about() -> None:
    rng, lanes, told = random.Random(3), Lanes(), dict[Ticket, float]()
    for _ in range(300):
        each = ticket(user=f"u{int(rng.expovariate(0.3))}", cost=rng.choice([100.0, 200.0, 400.0]))
        lanes["free"].push(each)
    queue = Queue(lanes, "free")
    for each in lanes["free"]:
        told[each] = queue.ahead(each)[1]
    done, ratios = 0.0, list[float]()
    for each in served(lanes, 300):
        if told[each] >= 3000:
            ratios.append(done / told[each])
        done += each.cost
    ratios.sort()
    assert ratios[len(ratios) // 10] > 0.65
    assert ratios[9 * len(ratios) // 10] < 1.25


def test_the_rate_is_known_from_the_first_queue_on() -> None:
    drain = Drain()
    assert drain.rate(1000.0) is None
    drain.note(cost=100.0, seconds=2.0, now=1000.0)
    assert drain.rate(1000.0) == 500.0
    assert lane_rate(500.0, "free", arriving_above=450.0) == 50.0
    assert lane_rate(500.0, "free", arriving_above=900.0) == 50.0, "never below the guaranteed share"
    assert lane_rate(500.0, "paid", arriving_above=0.0) == 500.0


def test_the_range_learns_from_waits_that_came_about() -> None:
    rng, errors, inside = random.Random(5), QuoteErrors(), 0
    for number in range(1000):
        quoted = rng.uniform(1, 30)
        waited = quoted * rng.lognormvariate(0.3, 0.4)
        if number >= 300:
            inside += errors.factor(0.1) * quoted <= waited <= errors.factor(0.9) * quoted
        errors.note(quoted=quoted, waited=waited)
    assert 0.75 < inside / 700 < 0.87
