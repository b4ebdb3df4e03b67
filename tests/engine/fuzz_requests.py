"""Coverage-guided fuzzing of the request parser: `make fuzz`, see tests/fuzzing.py.

Starts from every row of the table of malformed requests and the kept corpus. Whatever arrives, the parser may only do
two things: give a request that can be turned into work, or raise an InvalidRequestError that can be written as JSON.
A crash is kept as a file in the corpus folder, which the ordinary tests replay.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import orjson
from tests.engine.malformed import BODIES, CHAT, COMPLETION, HERMES_TEMPLATE, SHARED, USER

from tidewheel.engine.errors import InvalidRequestError
from tidewheel.engine.schema import ChatBody, CompletionBody, parse

CORPUS = Path(__file__).parent / "corpus"
VOCAB_SIZE = 500


def try_input(raw: bytes) -> None:
    """Raises for a bug of ours, and only then."""
    for kind in (ChatBody, CompletionBody):
        try:
            body = parse(kind, raw)
            body.sampling(vocab_size=VOCAB_SIZE, child=0, default_seed=0)
            body.grammar()
            if isinstance(body, ChatBody):
                use = body.tool_use(HERMES_TEMPLATE)
                orjson.dumps([message.for_template() for message in body.messages])
                orjson.dumps(None if use is None else use.for_template())
            else:
                assert isinstance(body.prompts, list)
        except InvalidRequestError as error:
            orjson.dumps(error.body())


def seeds() -> Iterator[bytes]:
    yield from BODIES
    chat, completion = {"model": "demo", "messages": [USER]}, {"model": "demo", "prompt": "hello"}
    for row in SHARED + CHAT:
        yield json.dumps(chat | row.fields).encode()
    for row in SHARED + COMPLETION:
        yield json.dumps(completion | row.fields).encode()
    yield from (path.read_bytes() for path in sorted(CORPUS.glob("*")))
