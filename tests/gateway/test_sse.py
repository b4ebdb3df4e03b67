"""Events out of bytes, wherever reads cut them."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewheel.gateway.sse import EventSplitter, EventTooLongError, event_data

STREAMS = {
    "lf": b"data: one\n\ndata: two\n\ndata: [DONE]\n\n",
    "crlf": b"data: one\r\n\r\ndata: two\r\n\r\n",
    "crlf, several lines": b"event: e\r\ndata: y\r\ndata: z\r\n\r\nid: 1\r\ndata: x\r\n\r\n",
    "cr": b"data: one\r\rdata: two\r\r",
    "mixed": b"data: one\r\n\ndata: two\n\r\ndata: three\r\r\ndata: four\n\n",
    "no space, fields, comments": b"id: 7\ndata:x\n\nevent: e\ndata: y\ndata:  z\n\n: ping\n\nretry: 3\n\n",
    "bom": b"\xef\xbb\xbfdata: first\n\ndata: second\n\n",
    "heartbeats with one newline": b"data: one\n\n: ping\n: ping\ndata: two\n\n",
    "utf-8": "data: Grüße 👋\n\ndata: 你好\n\n".encode(),
    "unterminated end": b"data: one\n\ndata: tw",
}
EXPECTED = {
    "lf": [b"one", b"two", b"[DONE]"],
    "crlf": [b"one", b"two"],
    "crlf, several lines": [b"y\nz", b"x"],
    "cr": [b"one", b"two"],
    "mixed": [b"one", b"two", b"three", b"four"],
    "no space, fields, comments": [b"x", b"y\n z"],
    "bom": [b"first", b"second"],
    "heartbeats with one newline": [b"one", b"two"],
    "utf-8": ["Grüße 👋".encode(), "你好".encode()],
    "unterminated end": [b"one"],
}


def split(*reads: bytes) -> tuple[list[bytes], bytes]:
    splitter, events = EventSplitter(1000), list[bytes]()
    for read in reads:
        events += splitter.feed(read)
    assert b"".join(events) + splitter.pending == b"".join(reads)  # byte for byte
    return [data for event in events if (data := event_data(event)) is not None], splitter.pending


@pytest.mark.parametrize("name", STREAMS)
def test_events_are_the_same_for_every_split_position(name: str) -> None:
    """graniet/llm#90, jcode#613, spiceai#12588; line ends of praxis#739, ai-gateway#2470."""
    stream = STREAMS[name]
    for position in range(len(stream) + 1):
        data, _ = split(stream[:position], stream[position:])
        assert data == EXPECTED[name], position


@pytest.mark.parametrize("name", STREAMS)
def test_events_are_the_same_byte_by_byte(name: str) -> None:
    data, _ = split(*(bytes([byte]) for byte in STREAMS[name]))
    assert data == EXPECTED[name]


def test_an_event_is_there_as_soon_as_its_last_byte_is() -> None:
    for end in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        assert EventSplitter(100).feed(b"data: x" + end) == [b"data: x" + end]


def test_what_follows_the_last_whole_event_is_kept_apart() -> None:
    assert split(STREAMS["unterminated end"])[1] == b"data: tw"


def test_an_event_without_end_is_refused() -> None:
    splitter = EventSplitter(10)
    splitter.feed(b"data: 1234")
    with pytest.raises(EventTooLongError):
        splitter.feed(b"5")


TEXT = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=8)
EVENTS = st.lists(st.tuples(st.lists(TEXT, min_size=1, max_size=3), st.sampled_from(["\n", "\r\n", "\r"])), max_size=6)


@settings(max_examples=300, deadline=None)
@given(events=EVENTS, cuts=st.lists(st.integers(0, 400)))
def test_any_events_with_any_line_ends_in_any_reads_are_found(
    events: list[tuple[list[str], str]], cuts: list[int]
) -> None:
    stream = "".join("".join(f"data: {line}{end}" for line in lines) + end for lines, end in events).encode()
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    data, rest = split(*(stream[start:stop] for start, stop in pairwise(places)))
    assert data == ["\n".join(lines).encode() for lines, _ in events]
    assert not rest.strip()
