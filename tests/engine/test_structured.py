"""Structured output: whatever the model prefers, what is sent fits; what cannot fit fails alone."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import jsonschema
import pytest
import torch
from tests.engine.builders import make_engine, make_request, make_scheduler, run_until_idle
from tests.engine.random_model import RandomModel
from tests.engine.serving import MODEL, serving

from tidewheel.engine.request import Request, SamplingParams
from tidewheel.engine.simulated_text import CHAT_TEMPLATE, END_ID, SIMULATED_VOCAB, simulated_tokenizer
from tidewheel.engine.structured import Grammar, GrammarCompiler, Matcher
from tidewheel.engine.tokenizer import ModelTokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["colour", "count", "tags"],
    "additionalProperties": False,
}
GBNF = 'root ::= "a" [0-9] "b"'


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def fits_schema(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


REQUESTS: dict[str, tuple[dict[str, Any], Any]] = {
    "json_schema": (json_schema(SCHEMA), fits_schema),
    "guided_json": ({"guided_json": SCHEMA}, fits_schema),
    "guided_json as text": ({"guided_json": json.dumps(SCHEMA)}, fits_schema),
    "structured_outputs.json": ({"structured_outputs": {"json": SCHEMA}}, fits_schema),
    "guided_regex": ({"guided_regex": r"\d{3}-[a-c]+x"}, re.compile(r"\d{3}-[a-c]+x").fullmatch),
    "structured_outputs.regex": ({"structured_outputs": {"regex": "ab?c"}}, {"abc", "ac"}.__contains__),
    "guided_choice": ({"guided_choice": ['say "hi"', "née\n"]}, {'say "hi"', "née\n"}.__contains__),
    "structured_outputs.choice": ({"structured_outputs": {"choice": ["yes", "no"]}}, {"yes", "no"}.__contains__),
    "guided_grammar in GBNF": ({"guided_grammar": GBNF}, re.compile("a[0-9]b").fullmatch),
    "structured_outputs.grammar in Lark": (
        {"structured_outputs": {"grammar": 'start: "x" ("y" | "z")'}}, {"xy", "xz"}.__contains__,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
async def test_the_reply_fits_whatever_the_model_prefers(name: str) -> None:
    fields, fits = REQUESTS[name]
    async with serving(runner=RandomModel()) as client:
        replies = await asyncio.gather(
            *(client.chat(seed=seed, max_tokens=200, **fields) for seed in range(4)),
            client.chat(temperature=0, max_tokens=200, **fields),
            client.complete("x", max_tokens=200, seed=9, **fields),
        )
        streamed = await client.stream(seed=0, max_tokens=200, **fields)
    for status, document in replies:
        assert status == 200, document
        (choice,) = document["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert choice["finish_reason"] == "stop"
        assert fits(text), text
    shown = "".join(e["choices"][0]["delta"].get("content", "") for e in streamed[:-1])
    assert shown == replies[0][1]["choices"][0]["message"]["content"]


async def test_json_object_is_an_object() -> None:
    async with serving(runner=RandomModel()) as client:
        _, document = await client.chat(response_format={"type": "json_object"}, max_tokens=300, seed=3)
    (choice,) = document["choices"]
    assert choice["message"]["content"].startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


async def test_each_choice_has_a_place_of_its_own_in_the_grammar() -> None:
    async with serving(runner=RandomModel()) as client:
        _, document = await client.chat(n=4, seed=1, guided_choice=["aa", "ab", "ba", "bb"], max_tokens=20)
    texts = [choice["message"]["content"] for choice in document["choices"]]
    assert set(texts) <= {"aa", "ab", "ba", "bb"}
    assert len(set(texts)) > 1


async def test_a_bad_schema_is_a_400_and_a_good_one_works_after_it() -> None:
    """vllm#17248, vllm#47312."""
    async with serving(runner=RandomModel()) as client:
        for _ in range(2):
            status, document = await client.chat(**json_schema({"type": "frob"}))
            assert (status, document["error"]["code"]) == (400, "invalid_grammar")
            assert document["error"]["param"] == "response_format.json_schema.schema"
            assert (await client.chat(max_tokens=200, **json_schema(SCHEMA)))[0] == 200
        assert client.service.is_healthy


async def test_a_grammar_that_gives_up_fails_its_request_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp#19051: nothing unconstrained is sent instead."""
    accept = Matcher.accept

    def give_up(self: Matcher, token_id: int) -> bool:
        return accept(self, token_id) and False

    async with serving(runner=RandomModel()) as client:
        monkeypatch.setattr(Matcher, "accept", give_up)
        constrained, plain = await asyncio.gather(client.chat(guided_regex="[a-z]{9}"), client.chat(max_tokens=3))
        assert (constrained[0], constrained[1]["error"]["code"]) == (500, "grammar_failed")
        assert plain[0] == 200
        monkeypatch.setattr(Matcher, "accept", accept)
        monkeypatch.setattr(Matcher, "allowed_tokens", lambda self: None)
        status, document = await client.chat(guided_regex="[a-z]{9}")
        assert (status, document["error"]["code"]) == (500, "grammar_failed")
        await client.until_idle()


def tokenizer() -> ModelTokenizer:
    return ModelTokenizer(simulated_tokenizer(), eos_ids=frozenset({END_ID}), chat_template=CHAT_TEMPLATE)


async def constrained_requests(count: int) -> list[Request]:
    compiler = GrammarCompiler(tokenizer(), vocab_size=SIMULATED_VOCAB)
    matcher = await compiler.compile(Grammar("regex", "[a-z ]{30}", "guided_regex"))
    requests = []
    for index in range(count):
        request = make_request([7 + index] * 5, max_tokens=40, sampling=SamplingParams(seed=index))
        request.eos_ids = frozenset({END_ID})
        request.constraint = matcher.copy()
        requests.append(request)
    return requests


async def test_a_preempted_reply_goes_on_where_its_grammar_was() -> None:
    text = tokenizer()
    alone = await constrained_requests(5)
    for request in alone:
        engine = make_engine(make_scheduler(num_blocks=40), RandomModel())
        engine.submit(request)
        run_until_idle(engine)
    together = await constrained_requests(5)
    scheduler = make_scheduler(num_blocks=14)
    engine = make_engine(scheduler, RandomModel())
    for request in together:
        engine.submit(request)
    run_until_idle(engine)
    assert scheduler.num_preemptions > 0
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]
    for request in together:
        output = b"".join(map(text.token_bytes, request.token_ids[5:])).decode()
        assert re.fullmatch("[a-z ]{30}", output)


async def test_a_nan_row_with_a_grammar_fails_alone() -> None:
    def edit(row: torch.Tensor, request: Request) -> None:
        if request.label == "bad":
            row[:] = torch.nan

    async with serving(runner=RandomModel(edit=edit)) as client:
        body = {"model": MODEL, "prompt": "x", "guided_regex": "[ab]{5}", "max_tokens": 9}
        bad, good = await asyncio.gather(
            client.post("/v1/completions", body, **{"X-Request-Id": "bad"}),
            client.post("/v1/completions", body, **{"X-Request-Id": "good"}),
        )
    assert (bad[0], bad[1]["error"]["code"]) == (500, "logits_not_finite")
    assert good[0] == 200
    assert re.fullmatch("[ab]{5}", good[1]["choices"][0]["text"])
