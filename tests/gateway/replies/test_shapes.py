"""What is recognised by its bytes says what a parser would have read, whatever the bytes are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewheel.gateway.observation import InvalidReplyError, ReplyObserver
from tidewheel.gateway.replies.reading import EngineLeavesError, Reader
from tidewheel.gateway.replies.tokenlog import Emission, TokenLog

OPENING = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
# T is the text, I the token ids, C the end of the choice and E that of the chunk.
FORMS = {
    "chat": b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"~T"},"finish_reason":null~I~C}]~E}\n\n',
    "completions": b'data: {"id":"c","choices":[{"index":0,"text":"~T","finish_reason":null~I~C}]~E}\n\n',
    "ids first": b'data: {"choices":[{"index":0~I,"text":"~T"~C}]~E}\n\n',
    "spaces": b'data: {"id": "c", "choices": [{"delta": {"content": "~T"}, "finish_reason": null~I~C}]~E}\n\n',
    "two choices": b'data: {"choices":[{"delta":{"content":"~T"}~I~C},{"delta":{"content":"x"}}]~E}\n\n',
    "carriage returns": b'data: {"id":"c","choices":[{"delta":{"content":"~T"}~I~C}]~E}\r\n\r\n',
    "two lines": b'data: {"choices":[{"delta":\ndata: {"content":"~T"}~I~C}]~E}\n\n',
    "twice": b'data: {"choices":[{"delta":{"content":"~T","content":"x"}~I~C}]~E}\n\n',
    "a key before": b'data: {"choices":[{"a":{"content":" token"},"delta":{"content":"~T"}~I~C}]~E}\n\n',
}
PIECES = ["a", " ", "é", "語", '"', "\\", "\\n", '\\"', "\\u00e9", "\\ud800", "\\uD83D\\uDE00", "\\u12", "[", "]", "}"]
PIECES += [",", ":", "token_ids", '\\"token_ids\\":[1]', '","token_ids":[5', '"},"x":{"content":"', "\n", "\r", "\x00"]
RAW = [b"\xff", b"\xed\xa0\x80", b"\xc3"]
TEXTS = st.lists(st.sampled_from([piece.encode() for piece in PIECES] + RAW), max_size=4).map(b"".join)
PLAIN = st.sampled_from([b" token", b"x", b"\\n", "é".encode()])
NUMBERS = (b"7", b"0", b"12", b"07", b"1,2", b"-1", b"1.5", b"4294967296", b"", b"[1]")
IDS = st.sampled_from(
    [b',"token_ids":[%b]' % ids for ids in NUMBERS]
    + [b"", b',"token_ids":null', b', "token_ids":[7]', b',"token_ids":[7],"prompt_token_ids":[1]']
)
CHOICE_ENDS = st.sampled_from(
    [b"", b',"logprobs":null', b',"text_held":true', b',"text_held":false', b',"index":"\xff"']
)
ENDS = st.sampled_from(
    [b"", b',"usage":null', b',"usage":{"completion_tokens":3}', b',"error":{"code":"x"}', b',"pad":1.0']
)

Said = tuple[list[tuple[bytes, list[int], bool]], str]


def event_of(form: str, text: bytes, ids: bytes = b"", choice_end: bytes = b"", end: bytes = b"") -> bytes:
    event = FORMS[form]
    for name, value in ((b"~E", end), (b"~C", choice_end), (b"~I", ids), (b"~T", text)):
        event = event.replace(name, value)
    return event


class Reading:
    """One reply as it is read, with shapes or without."""

    def __init__(self, *, asked: bool, by_shape: bool) -> None:
        self._log, self._observer = TokenLog(keeps_text=True), ReplyObserver(2.0)
        self._reader = Reader(self._log, self._observer, asked=asked, rewriter=None)
        self._by_shape = by_shape
        self.recognised = 0

    def read(self, event: bytes, now: float) -> Said:
        """What comes of an event."""
        if self._by_shape:
            ordinary = self._reader.ordinary(event, now=now)
            if ordinary is not None:
                self.recognised += 1
                return self._shown([ordinary]), ""
        try:
            return self._shown(self._reader.read(event, now=now)), ""
        except (InvalidReplyError, EngineLeavesError) as error:
            return [], str(error)

    def _shown(self, emissions: list[Emission]) -> list[tuple[bytes, list[int], bool]]:
        self._log.append(emissions)
        return [(event, list(ids), held) for event, ids, held in emissions]

    @property
    def learnt(self) -> list[object]:
        """Everything it knows of the reply."""
        log, seen = self._log, self._observer
        counted = [getattr(seen, name) for name in ReplyObserver.__slots__]
        return [*counted, log.count, log.settled, list(log.token_ids), log.opening, log.finished, log.since(0)]


@pytest.mark.parametrize("asked", [False, True], ids=["ids are cut out", "ids are asked for"])
@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(sorted(FORMS)),
    st.lists(st.tuples(PLAIN | TEXTS, IDS, CHOICE_ENDS, ENDS), min_size=2, max_size=6),
    st.tuples(PLAIN, IDS, CHOICE_ENDS, ENDS),
)
def test_with_and_without_shapes_a_stream_is_the_same(
    asked: bool, form: str, parts: list[tuple[bytes, ...]], usual: tuple[bytes, ...]
) -> None:
    fast, slow = Reading(asked=asked, by_shape=True), Reading(asked=asked, by_shape=False)
    # Besides the odd ones, events that are like the first but for their text: those are what a shape is for.
    similar = [(part[0], *usual[1:]) for part in parts]
    events = [OPENING, *(event_of(form, *part) for part in [usual, *similar, *parts])]
    for now, event in enumerate(events):
        assert fast.read(event, now) == slow.read(event, now)
        assert fast.learnt == slow.learnt


@pytest.mark.parametrize("form", ["chat", "completions"])
@pytest.mark.parametrize("ids", [b"", b',"token_ids":[%d]'], ids=["no ids", "ids"])
def test_the_second_ordinary_event_is_recognised(form: str, ids: bytes) -> None:
    reading = Reading(asked=False, by_shape=True)
    reading.read(OPENING, 0.0)
    for number, text in enumerate([b" a", " é語".encode(), b'\\n\\"', b"\\u00e9"]):
        reading.read(event_of(form, text, ids % number if ids else ids), 1.0)
        assert reading.recognised == number
