"""A chat stream told as Responses events: shapes as OpenAI's own types have them, numbers by the log alone."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from tests.gateway.sse_events import event_payloads

from tidewheel.gateway.requests import Request
from tidewheel.gateway.responses.asking import read_asking
from tidewheel.gateway.responses.fold import ResponseFold

_BODY = orjson.dumps({"model": "chat", "input": "hi"})
ECHO = read_asking(Request("POST", "/v1/responses", "", {}, _BODY, keep_alive=True, chunked_replies=True)).echo
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
DONE = b"data: [DONE]\n\n"


def chunk(**fields: Any) -> bytes:
    return b"id: 1\ndata: " + orjson.dumps({"id": "c", "choices": [], **fields}) + b"\n\n"


def text(said: str, finish: str | None = None) -> bytes:
    return chunk(choices=[{"index": 0, "delta": {"content": said}, "finish_reason": finish}])


USAGE = chunk(usage={"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}})
ERROR = b"event: error\ndata: " + orjson.dumps({"error": {"message": "m", "code": "stream_broken"}}) + b"\n\n"
CANCELLED = b"event: error\ndata: " + orjson.dumps({"error": {"message": "m", "code": "cancelled"}}) + b"\n\n"
QUEUED = chunk(tidewheel={"type": "queued", "position": 2, "eta_ms": 900})
STREAMS = {
    "completed": text("a") + text("b", "stop") + USAGE + DONE,
    "incomplete": text("a", "length") + USAGE + DONE,
    "failed": text("a") + ERROR,
    "cancelled": QUEUED + text("a") + CANCELLED,
    "queued": QUEUED,
    "in_progress": QUEUED + text("a"),
}


def fold() -> ResponseFold:
    return ResponseFold("resp_7", created=5, echo=ECHO)


def told(*frames: bytes) -> list[dict[str, Any]]:
    folded = fold()
    return [orjson.loads(data) for frame in frames for _, event in folded.feed(frame) for data in event_payloads(event)]


def test_the_events_of_a_text_are_openai_s_in_their_order() -> None:
    assert [event["type"] for event in told(STREAMS["completed"])] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


@pytest.mark.parametrize("status", STREAMS)
def test_every_event_has_the_shape_that_openai_s_types_demand(status: str) -> None:
    events = told(STREAMS[status])
    for event in events:
        EVENTS.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    folded = fold()
    folded.feed(STREAMS[status])
    document = Response.model_validate(folded.document())
    assert document.status == status


def test_the_last_event_carries_the_whole_response() -> None:
    last = told(STREAMS["completed"])[-1]["response"]
    assert last["output"][0]["content"][0]["text"] == "ab"
    assert last["output"][0]["status"] == "completed"
    assert (last["usage"]["input_tokens"], last["usage"]["output_tokens"], last["usage"]["total_tokens"]) == (3, 2, 5)
    assert last["usage"]["input_tokens_details"]["cached_tokens"] == 1
    cut = told(STREAMS["incomplete"])[-1]["response"]
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
    broken = told(STREAMS["failed"])[-1]["response"]
    assert broken["error"] == {"code": "server_error", "message": "m", "reason": "stream_broken"}
    assert broken["output"][0]["content"][0]["text"] == "a"


def test_a_place_in_the_queue_is_told() -> None:
    created, queued, *_ = told(STREAMS["in_progress"])
    assert created["response"]["status"] == queued["response"]["status"] == "queued"
    assert queued["queue"] == {"position": 2, "eta_ms": 900}


@given(st.sampled_from(sorted(STREAMS)), st.integers(0, 600))
def test_events_depend_on_the_log_alone_not_on_how_it_came(status: str, cut: int) -> None:
    stream = STREAMS[status]
    assert told(stream[:cut], stream[cut:]) == told(stream)


def test_nothing_follows_the_last_event() -> None:
    folded = fold()
    folded.feed(STREAMS["failed"])
    assert folded.feed(text("late")) == folded.close() == []
