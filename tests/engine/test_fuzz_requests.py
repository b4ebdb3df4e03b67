"""The parser on every seed of the fuzzing, on what fuzzing found, and on random changes of both."""

from __future__ import annotations

import json
import random
from typing import Any

import orjson
import pytest
from tests.engine.fuzz_requests import seeds, try_input

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 1.5, 1e308, -1e308, 1 << 62, "", "x", "\ud7ff\U0010ffff\x00", [], {}, [[]], [{}],
    {"": {}}, ["a", 1], {"type": "function"}, {"type": "text", "text": "x"}, "A" * 5000, list(range(300)),
]  # fmt: skip


def test_every_seed_is_understood_or_refused() -> None:
    for seed in seeds():
        try_input(seed)


def change(value: Any, rng: random.Random) -> Any:
    """Something else, somewhere in it."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        return {**value, key: change(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], change(value[at], rng), *value[at + 1 :]]
    return rng.choice(VALUES)


def objects() -> list[dict[str, Any]]:
    found = []
    for seed in seeds():
        try:
            document = orjson.loads(seed)
        except orjson.JSONDecodeError:
            continue
        if isinstance(document, dict):
            found.append(document)
    return found


def storm(count: int, seed: int) -> None:
    rng = random.Random(seed)
    documents = objects()
    for _ in range(count):
        # Two requests in one have fields that neither had beside each other.
        document = rng.choice(documents) | rng.choice(documents)
        for _ in range(rng.randint(1, 4)):
            document = change(document, rng)
        raw = json.dumps(document).encode()
        if rng.random() < 0.2:
            at = rng.randrange(len(raw))
            raw = raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
        try_input(raw)


def test_random_changes_are_understood_or_refused() -> None:
    storm(1500, seed=1)


@pytest.mark.long
def test_a_hundred_thousand_random_changes_are_understood_or_refused() -> None:
    storm(100_000, seed=2)
