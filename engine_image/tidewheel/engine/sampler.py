"""From logits to tokens: bias and minimum length, penalties, greedy pick, temperature, min-p, top-k, top-p, draw.

A draw is one uniform number against the cumulated probabilities. The number is a hash of (seed, position), so a request
draws the same tokens alone, in a batch, and after a preemption. All rows that draw are worked on together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from tidewheel.engine.errors import GenerationError
from tidewheel.engine.request import Logprobs, Request, SamplingParams
from tidewheel.engine.scheduler import Sampled

# Top-k and top-p are settled among this many best tokens; a row that needs more gets sixteen times as many.
_NUM_CANDIDATES = 256
_BLOCK = 1024
_LOWEST_LOGPROB = -9999.0
_NO_STRUCTURE = "The reply could not be kept to the structure that was asked for."
_NOT_A_NUMBER = "The model's output for this request was not a number."


class Sampler:
    def __init__(self, argmax: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        self._argmax = argmax

    def sample(self, logits: Tensor, requests: Sequence[Request]) -> list[Sampled]:
        """One answer per row. A row that is not a number fails alone."""
        # The model's own opinion, before anybody edits it.
        reported = {i: logits[i].float().clone() for i, r in enumerate(requests) if r.sampling.num_logprobs is not None}
        stuck = {row for row, request in enumerate(requests) if not _constrain(logits[row], request)}
        for row, request in enumerate(requests):
            if request.sampling.edits_logits:
                _edit(logits[row], request)
        values, ids = self._argmax(logits)
        token_ids: list[int] = ids.tolist()
        bad = (~values.isfinite()).tolist()
        # The best token is what top_k = 1 means, whatever ties there are.
        drawing = [
            row
            for row, request in enumerate(requests)
            if not (bad[row] or request.sampling.is_greedy or request.sampling.top_k == 1)
        ]
        if drawing:
            drawn = _draw(logits[drawing], [requests[row] for row in drawing])
            for row, token_id in zip(drawing, drawn, strict=True):
                token_ids[row] = token_id
        answers = [
            Sampled(None, GenerationError(_NOT_A_NUMBER, code="logits_not_finite")) if failed else Sampled(token_id)
            for token_id, failed in zip(token_ids, bad, strict=True)
        ]
        for row, request in enumerate(requests):
            # After a NaN the constraint has nothing to take; the row fails as it is.
            if row in stuck or (request.constraint and not bad[row] and not request.constraint.accept(token_ids[row])):
                answers[row] = Sampled(None, GenerationError(_NO_STRUCTURE, code="grammar_failed"))
        for row, values in reported.items():
            if answers[row].token_id is not None:
                logprobs = _logprobs(values, token_ids[row], requests[row].sampling.num_logprobs or 0)
                answers[row] = answers[row]._replace(logprobs=logprobs)
        return answers


def _constrain(row: Tensor, request: Request) -> bool:
    """Forbid, in place, what the request's constraint does; False if that leaves nothing to choose from."""
    if request.constraint is None:
        return True
    mask = request.constraint.allowed_tokens()
    if mask is None:
        return False
    bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=len(row), bitorder="little")
    allowed = torch.from_numpy(bits).to(row.device, torch.bool)
    row.masked_fill_(~allowed, -math.inf)
    return bool(bits.any())


def _logprobs(row: Tensor, token_id: int, count: int) -> Logprobs:
    row = row - row.logsumexp(0)
    values, ids = row.topk(min(count, len(row)))
    # JSON has no infinity.
    values = values.clamp(min=_LOWEST_LOGPROB)
    return Logprobs(max(float(row[token_id]), _LOWEST_LOGPROB), tuple(zip(ids.tolist(), values.tolist(), strict=True)))


def _edit(row: Tensor, request: Request) -> None:
    """In place: bias and minimum length, then repetition, frequency and presence penalties."""
    sampling = request.sampling
    for token_id, bias in sampling.logit_bias:
        row[token_id] += bias
    if request.num_output < sampling.min_tokens:
        row[[*request.eos_ids, *sampling.stop_token_ids]] = -math.inf
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(request.token_ids)), device=row.device)
        values = row[seen]
        row[seen] = torch.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
    if (sampling.frequency_penalty or sampling.presence_penalty) and request.num_output:
        output = torch.tensor(request.token_ids[request.num_prompt :], device=row.device)
        ids, counts = torch.unique(output, return_counts=True)
        row[ids] -= sampling.frequency_penalty * counts + sampling.presence_penalty


def _draw(logits: Tensor, requests: Sequence[Request]) -> list[int]:
    """One token per row; the rows are ours to change."""
    sampling = [request.sampling for request in requests]
    logits = logits.float()
    logits /= _column([p.temperature for p in sampling], logits)
    if any(p.min_p for p in sampling):
        floors = [math.log(p.min_p) if p.min_p else -math.inf for p in sampling]
        logits.masked_fill_(logits < logits.amax(-1, keepdim=True) + _column(floors, logits), -math.inf)
    uniform = torch.tensor([uniform_number(r.sampling.seed, r.num_output) for r in requests], dtype=torch.float64)
    uniform = uniform.to(logits.device)
    cut = [row for row, p in enumerate(sampling) if p.top_k or p.top_p < 1]
    whole = [row for row, p in enumerate(sampling) if not (p.top_k or p.top_p < 1)]
    token_ids = [0] * len(requests)
    if whole:
        drawn = _pick(logits[whole].softmax(-1), uniform[whole])
        for row, token_id in zip(whole, drawn.tolist(), strict=True):
            token_ids[row] = token_id
    if cut:
        drawn = _draw_from_nucleus(logits[cut], [sampling[row] for row in cut], uniform[cut])
        for row, token_id in zip(cut, drawn.tolist(), strict=True):
            token_ids[row] = token_id
    return token_ids


def _pick(weights: Tensor, uniform: Tensor) -> Tensor:
    """The index at which the cumulated weights pass `uniform` times their sum. Zero weights are never picked."""
    num_blocks = weights.shape[-1] // _BLOCK
    if num_blocks > 1 and weights.shape[-1] % _BLOCK == 0:
        # A block first, then a weight in it: cumulating a whole vocabulary would cost more than all the rest.
        blocks = weights.view(len(weights), num_blocks, _BLOCK)
        block, rest = _pass(blocks.sum(-1, dtype=torch.float64).cumsum(-1), uniform)
        inside = blocks[torch.arange(len(weights), device=weights.device), block].cumsum(-1, dtype=torch.float64)
        return block * _BLOCK + _first_above(inside, rest)
    cumulated = weights.cumsum(-1, dtype=torch.float64)
    return _first_above(cumulated, uniform * cumulated[:, -1])


def _pass(cumulated: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The first block whose cumulated weight is above `uniform` of the total, and how far into it that point lies."""
    point = uniform * cumulated[:, -1]
    block = _first_above(cumulated, point)
    before = torch.where(block > 0, cumulated.gather(-1, (block - 1).clamp_(min=0)[:, None]).squeeze(-1), 0.0)
    return block, point - before


def _first_above(cumulated: Tensor, point: Tensor) -> Tensor:
    """Never beyond the last index that adds anything, whatever the rounding."""
    last = (cumulated < cumulated[:, -1:]).sum(-1)
    return torch.minimum(torch.searchsorted(cumulated, point[:, None], right=True).squeeze(-1), last)


def _draw_from_nucleus(
    logits: Tensor, sampling: Sequence[SamplingParams], uniform: Tensor, *, num_candidates: int = _NUM_CANDIDATES
) -> Tensor:
    """Top-k first; top-p then counts the mass that top-k left, and keeps at least one token."""
    width = logits.shape[-1]
    num_candidates = min(num_candidates, width)
    values, ids = logits.topk(num_candidates)
    top_k = _column([min(p.top_k or width, width) for p in sampling], logits)
    outside = torch.arange(num_candidates, device=logits.device) >= top_k
    values.masked_fill_(outside, -math.inf)
    total = torch.where(top_k <= num_candidates, values.logsumexp(-1, keepdim=True), logits.logsumexp(-1, keepdim=True))
    weights = (values - total).exp()
    # Nothing lies before the best token, and top_p is above 0, so that one is always kept.
    before = weights.cumsum(-1) - weights
    dropped = before >= _column([p.top_p for p in sampling], logits)
    picked = _pick(weights.masked_fill(dropped, 0), uniform)
    drawn = ids.gather(-1, picked[:, None]).squeeze(-1)
    # Nothing was dropped and more may follow: these rows need more of the vocabulary in order.
    unsettled = ~(dropped[:, -1] | outside[:, -1]) & (num_candidates < width)
    if bool(unsettled.any()):
        rows = unsettled.nonzero().squeeze(-1)
        again = [sampling[row] for row in rows.tolist()]
        drawn[rows] = _draw_from_nucleus(logits[rows], again, uniform[rows], num_candidates=16 * num_candidates)
    return drawn


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device)[:, None]


_MASK = (1 << 64) - 1


def uniform_number(seed: int, position: int) -> float:
    """In [0, 1), a pure function of the two."""
    return (_mix(_mix(seed & _MASK) ^ (position & _MASK)) >> 11) / 2**53


def _mix(value: int) -> int:
    """SplitMix64's step and finaliser."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
