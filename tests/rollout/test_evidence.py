"""The statistics themselves: valid under the null however often one looks, and strong under a real difference."""

import random
from math import exp, log

import pytest

from tidewheel.rollout.evidence.processes import NO_NOISE, EvidenceProcess, Side, log_mean_exp


def noisy_share(chance: random.Random, share: float, noise: float) -> float:
    """A block's share whose odds stray by this much, its mean kept: a beta law."""
    if not noise:
        return share
    return chance.betavariate(1 / ((1 - share) * noise**2), 1 / (share * noise**2))


def highest(chance: random.Random, *, share: float, noise: float, events: int, blocks: int) -> float:
    """The highest evidence of a process that is looked at after every block, as odds."""
    process, top = EvidenceProcess(), 0.0
    for _ in range(blocks):
        mine = noisy_share(chance, share, noise)
        bad = sum(chance.random() < mine for _ in range(events))
        process.add(limit_odds=share / (1 - share), counts=[(float(bad), float(events - bad))])
        top = max(top, process.log_evidence()[0])
    return exp(min(top, 50))


@pytest.mark.parametrize("noise", [0.0, 0.4, 0.9], ids=lambda noise: f"noise {noise}")
@pytest.mark.parametrize("share", [0.05, 0.5], ids=lambda share: f"share {share}")
def test_evidence_under_the_null_passes_t_at_most_once_in_t(share: float, noise: float) -> None:
    """Ville's inequality, looked at after every block, at noise on the grid and between its points."""
    chance = random.Random(f"{share} {noise}")
    tops = [highest(chance, share=share, noise=noise, events=20, blocks=20) for _ in range(100)]
    assert sum(top >= 20 for top in tops) <= 12, "5 expected at most; 12 is three standard deviations"
    assert sum(top >= 100 for top in tops) <= 4


@pytest.mark.parametrize(("odds", "most_blocks"), [(1.5, 60), (2.0, 25), (5.0, 6)])
def test_a_real_difference_is_found(odds: float, most_blocks: int) -> None:
    chance = random.Random(str(odds))
    process, blocks = EvidenceProcess(), 0
    share = 0.2 * odds / (1 - 0.2 + 0.2 * odds)
    while process.log_evidence()[0] < log(2400) and blocks < 200:
        bad = sum(chance.random() < share for _ in range(60))
        process.add(limit_odds=0.25, counts=[(float(bad), float(60 - bad))])
        blocks += 1
    assert blocks <= most_blocks


def test_less_than_the_limit_is_never_evidence_of_more() -> None:
    process = EvidenceProcess()
    for _ in range(100):
        process.add(limit_odds=1.0, counts=[(10.0, 90.0)])
    assert process.log_evidence()[0] < 0


def test_below_is_the_mirror_of_above() -> None:
    above, below = EvidenceProcess(), EvidenceProcess(side=Side.BELOW)
    for _ in range(10):
        above.add(limit_odds=0.25, counts=[(40.0, 60.0)])
        below.add(limit_odds=4.0, counts=[(60.0, 40.0)])
    assert above.log_evidence()[0] == pytest.approx(below.log_evidence()[0])


def test_nothing_counted_is_no_evidence() -> None:
    process = EvidenceProcess(columns=2)
    process.add(limit_odds=0.5, counts=[(0.0, 0.0), (0.0, 0.0)])
    process.add(limit_odds=0.0, counts=[(3.0, 1.0), (3.0, 1.0)])
    assert process.log_evidence() == pytest.approx((0.0, 0.0))
    assert process.blocks == 0


def test_a_sign_in_twelve_looks_in_a_row() -> None:
    process = EvidenceProcess(noise_levels=NO_NOISE)
    for _ in range(12):
        process.add(limit_odds=1.0, counts=[(1.0, 0.0)])
    assert 500 < exp(process.log_evidence()[0]) < 2**12


def test_counts_need_not_be_whole() -> None:
    process = EvidenceProcess()
    process.add(limit_odds=0.1, counts=[(3.7, 12.2)])
    assert process.log_evidence()[0] > 0


def test_the_mean_of_evidence_survives_numbers_no_float_can_hold() -> None:
    assert log_mean_exp([5000.0, 0.0]) == pytest.approx(5000 - log(2))
    assert log_mean_exp([-5000.0, -5000.0]) == pytest.approx(-5000)
