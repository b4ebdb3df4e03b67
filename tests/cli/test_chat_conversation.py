"""Reading a stream, and what a conversation remembers of it."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from typing import Any, cast

import pytest

from tidewheel.cli.chat.conversation import Conversation, Reply, read_events
from tidewheel.cli.chat.endpoint import Endpoint
from tidewheel.cli.errors import CliError


class Body(io.BytesIO):
    """What http.client hands out, as far as it is read."""

    def __init__(self, lines: list[bytes], *, version: str = "") -> None:
        super().__init__(b"".join(line + b"\n" for line in lines))
        self.headers = Message()
        if version:
            self.headers["X-Tidewheel-Version"] = version


class Scripted(Endpoint):
    """An endpoint that answers what it was told to, and remembers what it was asked."""

    def __init__(self, *answers: list[bytes]) -> None:
        super().__init__("http://scripted")
        object.__setattr__(self, "answers", list(answers))
        object.__setattr__(self, "asked", [])

    @contextmanager
    def post(self, path: str, body: Any, *, headers: Any) -> Iterator[Any]:
        self.asked.append((path, json.loads(json.dumps(body)), dict(headers)))  # type: ignore[attr-defined]
        yield Body(self.answers.pop(0), version="v1")  # type: ignore[attr-defined]


def chunk(text: str, **choice: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}, **choice}]}).encode()


DONE = b"data: [DONE]"


def read(lines: list[bytes]) -> list[dict[str, Any]]:
    return list(read_events(cast("Any", Body(lines))))


def test_comments_and_blank_lines_are_no_events() -> None:
    assert len(read([b": heartbeat", b"", chunk("a"), b"", DONE])) == 1


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        pytest.param([chunk("a")], "cut before its end", id="no closing mark"),
        pytest.param([b'data: {"error": {"message": "the replica died"}}'], "the replica died", id="error event"),
        pytest.param([b'data: {"choices": [', DONE], "was cut", id="half an event"),
    ],
)
def test_a_reply_that_did_not_end_says_so(lines: list[bytes], words: str) -> None:
    with pytest.raises(CliError, match=words):
        read(lines)


def conversation(*answers: list[bytes]) -> tuple[Conversation, Any]:
    endpoint = Scripted(*answers)
    return Conversation(endpoint, "chat", max_tokens=9), endpoint


def test_every_turn_carries_the_ones_before_and_the_same_conversation_id() -> None:
    talk, endpoint = conversation([chunk("Hi"), chunk(" you"), DONE], [chunk("Yes"), DONE])
    assert "".join(talk.say("Hello", reply=Reply())) == "Hi you"
    list(talk.say("Really?", reply=Reply()))
    bodies = [body for _, body, _ in endpoint.asked]
    assert [m["content"] for m in bodies[1]["messages"]] == ["Hello", "Hi you", "Really?"]
    assert len({headers["X-Conversation-Id"] for _, _, headers in endpoint.asked}) == 1


def test_a_reply_stopped_by_the_reader_is_kept_as_far_as_it_was_shown() -> None:
    talk, _ = conversation([chunk("one "), chunk("two "), chunk("three"), DONE])
    pieces = talk.say("Count", reply=Reply())
    shown = next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert [m["content"] for m in talk.messages] == ["Count", shown]


def test_a_turn_without_an_answer_is_forgotten() -> None:
    talk, _ = conversation([b'data: {"error": {"message": "overloaded"}}'])
    with pytest.raises(CliError):
        list(talk.say("Hello", reply=Reply()))
    assert talk.messages == []


def test_the_summary_counts_tokens_and_speed() -> None:
    ticks = iter([0.0, 0.2, 1.2])
    talk, _ = conversation([chunk("a"), chunk("b", finish_reason="length"), DONE])
    reply = Reply()
    list(talk.say("Hello", reply=reply, clock=lambda: next(ticks)))
    assert reply.summary() == "first token 200 ms · 2 tokens · 1.0 tok/s · cut at --max-tokens · v1"
