"""Fuzzing of what the gateway reads byte by byte: requests of clients, answers of replicas, event streams. `make fuzz`.

The first byte of an input says which of them it is for, the second where reads cut it. Whatever arrives, and however it
is cut: requests are the same ones or a typed refusal, an answer has one end, and an event stream loses no byte.
"""

import random
from collections.abc import Iterator
from pathlib import Path

from tests.gateway.answers import CHUNKED, INTERIM, LENGTH, UNTIL_CLOSE, hear
from tests.gateway.malformed import HEAD, PIPELINE, REFUSED

from tidewheel.gateway.errors import InvalidRequestError
from tidewheel.gateway.observation import InvalidReplyError, ReplyObserver
from tidewheel.gateway.replies.chunks import plain_event, without_token_ids
from tidewheel.gateway.requests import Request, RequestParser
from tidewheel.gateway.settings import Settings
from tidewheel.gateway.sse import EventSplitter, EventTooLongError, event_data

CORPUS = Path(__file__).parent / "corpus"
SETTINGS = Settings(max_body_bytes=1000, max_header_bytes=500, max_headers=10, max_event_bytes=600)
STREAMS = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[1,2]}]}\n\ndata: [DONE]\n\n',
    b"\xef\xbb\xbfdata:x\r\n\r\n: ping\n\ndata: a\rdata: b\r\revent: error\ndata: {}\n\n",
    b'id: 1\ndata: {"choices":[{"text":"a","finish_reason":null,"text_held":true}],"prompt_token_ids":[1]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\nretry: 5\n\n',
)


def try_input(raw: bytes) -> None:
    """Raises for a bug of ours, and only then."""
    if len(raw) < 2:
        return
    kind, cuts, data = raw[0] % 3, random.Random(raw[1]), raw[2:]
    reads = list(cut(data, cuts))
    if kind == 0:
        try_requests(data, reads)
    elif kind == 1:
        assert len(hear(*reads)[0].ends) == 1
        assert len(hear(data)[0].ends) == 1
    else:
        try_events(data, reads)


def cut(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """Reads of 1 to 40 bytes."""
    start = 0
    while start < len(data):
        end = start + rng.choice((1, 2, 5, 40))
        yield data[start:end]
        start = end


def try_requests(data: bytes, reads: list[bytes]) -> None:
    whole, refused_whole = parse([data])
    pieces, refused = parse(reads)
    told_apart = [(request.method, request.path, request.body) for request in whole]
    assert [(request.method, request.path, request.body) for request in pieces] == told_apart[: len(pieces)]
    # Only a limit on bytes may see more of a request that comes in pieces.
    assert len(pieces) == len(whole) or refused
    for request in (*whole, *pieces):
        assert not {b"content-length", b"transfer-encoding"} <= set(request.headers)
        assert len(request.body) <= SETTINGS.max_body_bytes
        assert len(request.headers) <= SETTINGS.max_headers
    assert refused or not refused_whole


def parse(reads: list[bytes]) -> tuple[list[Request], bool]:
    """The requests up to the first refusal, and whether there was one."""
    parser, found = RequestParser(SETTINGS), list[Request]()
    for read in reads:
        try:
            found += parser.feed(read)
        except InvalidRequestError as refusal:
            if not 400 <= refusal.status < 500:
                raise
            refusal.to_json()
            return found, True
        if found and not found[-1].keep_alive:
            return found, True
    return found, False


def try_events(data: bytes, reads: list[bytes]) -> None:
    events, rest = split(reads)
    if rest is None:
        return
    assert b"".join(events) + rest == data
    whole, _ = split([data])
    assert [event_data(event) for event in events if event.strip()] == [
        event_data(event) for event in whole if event.strip()
    ]
    observer = ReplyObserver(2.0)
    for event in events:
        text = event_data(event)
        if text is None:
            continue
        assert event_data(plain_event(event, text)) == text
        try:
            observer.observe_event(text, now=1.0)
        except InvalidReplyError:
            continue
        if event.startswith(b"data: {") and b"\r" not in event and event.count(b"\n") == 2:
            without_token_ids(event)


def said(events: list[bytes]) -> list[bytes]:
    """The data of those that have any."""
    return [data for event in events if (data := event_data(event)) is not None]


def split(reads: list[bytes]) -> tuple[list[bytes], bytes | None]:
    """The events, and what came after them; None for an event without end."""
    splitter, events = EventSplitter(SETTINGS.max_event_bytes), list[bytes]()
    try:
        for read in reads:
            events += splitter.feed(read)
    except EventTooLongError:
        return events, None
    return events, splitter.pending


def seeds() -> Iterator[bytes]:
    """The tables of the ordinary tests, and what fuzzing found."""
    for request in (PIPELINE, HEAD + b"\r\n", *REFUSED.values()):
        yield b"\x00\x01" + request
    for answer in (CHUNKED, LENGTH, INTERIM, UNTIL_CLOSE):
        yield b"\x01\x02" + answer
    for stream in STREAMS:
        yield b"\x02\x03" + stream
    yield from (path.read_bytes() for path in sorted(CORPUS.glob("*")))
