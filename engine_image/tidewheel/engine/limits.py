"""How many requests may run at once and how much of a prompt a step may take, from the step times that were measured.

    seconds = base + a * prefill tokens + b * decoding requests + c * tokens they attend to + d * prefill pairs

is fitted by least squares over recent steps; a pair is a prompt token and one that it attends to. With a target for the
time per output token, the limit is the most decoding requests whose predicted step stays below it, and a step takes as
much of the prompts as it has time for beside its decodes. Pure: the clock and the steps come from outside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Steps after which half of an observation's weight is gone: long enough for both chunks and decodes to be among them.
_HALF_LIFE = 500
_MIN_STEPS = 50
# Near one, so that the sums below stay well-conditioned.
_SCALES = (1.0, 100.0, 10.0, 10_000.0, 100_000.0)
_TERMS = len(_SCALES)
_RIDGE = 1e-6
# Of prompts a step takes this much though it has no time for it: they must get on beside decodes that never end.
_LEAST_CHUNK = 16


class StepLoad(NamedTuple):
    num_prefill_tokens: int
    num_decodes: int
    num_context_tokens: int  # over the decoding requests
    num_prefill_pairs: int = 0


@dataclass(frozen=True, slots=True)
class StepTimeFit:
    """All in seconds."""

    base: float
    per_prefill_token: float
    per_decode: float
    per_context_token: float
    per_prefill_pair: float = 0.0

    def seconds(self, load: StepLoad) -> float:
        return (
            self.base
            + self.per_prefill_token * load.num_prefill_tokens
            + self.per_decode * load.num_decodes
            + self.per_context_token * load.num_context_tokens
            + self.per_prefill_pair * load.num_prefill_pairs
        )

    def max_chunk(self, *, seconds: float, start: int) -> float:
        """The most prompt tokens from position `start` on that take `seconds`: n of them make n * start + n * n / 2
        pairs, so the answer is the positive root of a quadratic."""
        square, linear = self.per_prefill_pair / 2, self.per_prefill_token + self.per_prefill_pair * start
        if seconds <= 0:
            return 0.0
        # In this form there is no difference of nearly equal numbers, and a fit without pairs needs no case of its own.
        denominator = linear + math.sqrt(linear * linear + 4 * square * seconds)
        return 2 * seconds / denominator if denominator > 0 else math.inf

    def max_decodes(self, *, seconds: float, mean_context: float) -> int:
        """The most requests that can decode in one step of at most `seconds`; at least one."""
        each = self.per_decode + self.per_context_token * mean_context
        if each <= 0:
            return 1 << 30
        return max(1, int((seconds - self.base) / each))


class StepTimeModel:
    def __init__(self) -> None:
        self._keep = 0.5 ** (1 / _HALF_LIFE)
        self._products = [[0.0] * _TERMS for _ in range(_TERMS)]
        self._targets = [0.0] * _TERMS
        self.num_steps = 0

    def observe(self, load: StepLoad, seconds: float) -> None:
        row = [value / scale for value, scale in zip((1, *load), _SCALES, strict=True)]
        for i in range(_TERMS):
            products = self._products[i]
            for j in range(_TERMS):
                products[j] = products[j] * self._keep + row[i] * row[j]
            self._targets[i] = self._targets[i] * self._keep + row[i] * seconds
        self.num_steps += 1

    def fit(self) -> StepTimeFit | None:
        """None until enough steps were seen. No term is negative: more work never takes less time."""
        if self.num_steps < _MIN_STEPS:
            return None
        terms = list(range(_TERMS))
        while True:
            solution = self._solve(terms)
            worst = min(range(len(terms)), key=solution.__getitem__)
            if solution[worst] >= 0 or len(terms) == 1:
                break
            del terms[worst]
        found = dict(zip(terms, solution, strict=True))
        return StepTimeFit(*(max(0.0, found.get(i, 0.0)) / _SCALES[i] for i in range(_TERMS)))

    def _solve(self, terms: Sequence[int]) -> list[float]:
        """The normal equations of some terms, by elimination; the ridge keeps unseen ones at zero."""
        rows = [[self._products[i][j] for j in terms] + [self._targets[i]] for i in terms]
        for index in range(len(terms)):
            rows[index][index] += _RIDGE
        for pivot, row in enumerate(rows):
            for other in rows:
                if other is not row:
                    factor = other[pivot] / row[pivot]
                    for column in range(pivot, len(row)):
                        other[column] -= factor * row[column]
        return [row[-1] / row[index] for index, row in enumerate(rows)]


class ConcurrencyLimit:
    """Moves by a tenth (at least one) and at most once a second, so that it neither jumps nor oscillates."""

    def __init__(self, *, ceiling: int, seconds_per_token: float | None) -> None:
        self.value = ceiling
        self._ceiling = ceiling
        self._target = seconds_per_token
        self._next_change = 0.0

    def update(self, fit: StepTimeFit | None, *, mean_context: float, now: float) -> None:
        if self._target is None or fit is None or now < self._next_change:
            return
        wanted = min(self._ceiling, fit.max_decodes(seconds=self._target, mean_context=mean_context))
        most = max(1, self.value // 10)
        self.value += max(-most, min(most, wanted - self.value))
        self._next_change = now + 1.0


class PrefillLimit:
    """What prompts may take of a step, so that its decodes do not wait longer than the target."""

    def __init__(self, *, seconds_per_token: float | None) -> None:
        self._target = seconds_per_token
        self._fit: StepTimeFit | None = None

    def update(self, fit: StepTimeFit | None) -> None:
        self._fit = fit

    def most(self, load: StepLoad, *, start: int) -> float:
        """The most tokens of a prompt, from position `start` on, that fit into a step beside `load`."""
        if self._target is None or self._fit is None or not load.num_decodes:
            # Without decodes nobody waits for a next token.
            return math.inf
        left = self._target - self._fit.seconds(load)
        chunk = self._fit.max_chunk(seconds=left, start=start)
        return chunk if load.num_prefill_tokens else max(_LEAST_CHUNK, chunk)
