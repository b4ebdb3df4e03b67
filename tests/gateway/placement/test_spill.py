"""When a request goes to another region."""

import pytest

from tidewheel.gateway.placement.spill import Offer, choose_place, cold_seconds

NEAR, FAR = Offer("near", 0.2), Offer("far", 0.0)


@pytest.mark.parametrize(
    ("here", "offers", "cold", "region"),
    [
        (5.0, [NEAR, FAR], 0.0, "far"),
        (0.25, [NEAR], 0.0, None),
        (0.35, [NEAR], 0.0, "near"),
        (0.35, [NEAR], 0.1, None),
        (0.3, [NEAR], 0.0, None),
        (0.0, [FAR], 0.0, None),
        (None, [FAR], 0.0, None),
        (5.0, [], 0.0, None),
        (5.0, [Offer("b", 1.0), Offer("a", 1.0)], 0.0, "a"),
    ],
    ids=["least", "way", "wins", "cold", "same", "room", "unknown", "nobody", "ties-by-name"],
)
def test_the_cheaper_place_is_chosen(here: float | None, offers: list[Offer], cold: float, region: str | None) -> None:
    place = choose_place(here, offers, penalty=0.1, cold=cold)
    assert place.region == region
    assert place.reason


def test_what_is_warm_here_costs_its_prefill_there() -> None:
    assert cold_seconds(prompt_tokens=10_000, warm_share=0.5, prefill_rate=5000) == 1.0
    assert cold_seconds(prompt_tokens=10_000, warm_share=0.0, prefill_rate=5000) == 0.0
    assert cold_seconds(prompt_tokens=10_000, warm_share=2.0, prefill_rate=5000) == 2.0
    assert cold_seconds(prompt_tokens=10_000, warm_share=1.0, prefill_rate=0) == 0.0
