"""When a reply ends."""

from __future__ import annotations

import pytest
from tests.engine.builders import EOS, make_request

from tidewheel.engine.request import FinishReason, SamplingParams


@pytest.mark.parametrize(
    ("sampling", "tokens", "reason", "count"),
    [
        ({}, [9, EOS, 9], FinishReason.STOP, 2),
        ({}, [9, 9, 9, 9], FinishReason.LENGTH, 4),
        ({"ignore_eos": True}, [EOS, EOS, EOS, EOS], FinishReason.LENGTH, 4),
        ({"stop_token_ids": (7,)}, [9, 7], FinishReason.STOP, 2),
        ({"stop_token_ids": (7,), "ignore_eos": True}, [EOS, 7], FinishReason.STOP, 2),
        ({"min_tokens": 3}, [EOS, EOS, EOS], FinishReason.STOP, 3),
    ],
    ids=["eos", "length", "ignored eos", "stop id", "ignored eos, stop id", "not before the minimum"],
)
def test_a_reply_ends_where_it_should(sampling, tokens: list[int], reason: FinishReason, count: int) -> None:  # type: ignore[no-untyped-def]
    """vllm#4589: ignore_eos also ignores the model's own end tokens, but not those the client named."""
    request = make_request(3, max_tokens=4, sampling=SamplingParams(**sampling))
    for number, token_id in enumerate(tokens, start=1):
        ended = request.append(token_id, now=float(number))
        if ended is not None:
            assert (ended, number) == (reason, count)
            return
    pytest.fail("it did not end")


def test_the_output_never_counts_as_prompt() -> None:
    request = make_request(3)
    request.append(9, now=1.0)
    assert (request.num_prompt, request.num_output, request.num_known) == (3, 1, 4)
