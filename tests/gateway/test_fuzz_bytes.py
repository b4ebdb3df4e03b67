"""Every seed of the gateway's fuzzing, what fuzzing has found, and seeded random changes of both."""

import random

import pytest
from tests.gateway.fuzz_bytes import seeds, try_input


def test_every_seed_is_understood_or_refused_however_it_is_cut() -> None:
    for seed in seeds():
        for cuts in range(8):
            try_input(seed[:1] + bytes([cuts]) + seed[2:])


def storm(count: int, seed: int) -> None:
    rng, known = random.Random(seed), list(seeds())
    for _ in range(count):
        data = bytearray(rng.choice(known))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(2, max(3, len(data)))
            match rng.randrange(3):
                case 0:
                    data[at : at + 1] = bytes([rng.randrange(256)])
                case 1:
                    data[at : at + rng.randint(1, 9)] = b""
                case _:
                    other = rng.choice(known)
                    data[at:at] = other[rng.randrange(2, max(3, len(other))) :][: rng.randint(1, 60)]
        try_input(bytes(data))


def test_random_changes_are_understood_or_refused() -> None:
    storm(1000, seed=1)


@pytest.mark.long
def test_a_hundred_thousand_random_changes_are_understood_or_refused() -> None:
    storm(100_000, seed=2)
