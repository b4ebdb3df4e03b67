"""What a reply tells about itself while it passes."""

import pytest
from tests.gateway.sse_events import event_payloads
from tests.gateway.upstreams import chat_event, chat_reply, usage_event

from tidewheel.gateway.observation import InvalidReplyError, ReplyObserver


def observe(*events: tuple[float, bytes]) -> ReplyObserver:
    observer = ReplyObserver(stall_seconds=2.0)
    for now, event in events:
        for data in event_payloads(event):
            observer.observe_event(data, now=now)
    return observer


def test_the_first_token_is_the_first_text_not_the_first_event() -> None:
    observer = observe((1.0, chat_event(None, role=True)), (5.0, chat_event("a")), (5.1, chat_event("b")))
    assert observer.first_token_at == 5.0
    assert observer.output_tokens == 2
    assert observer.seconds_per_token == pytest.approx(0.1)


def test_usage_is_believed_over_counting() -> None:
    observer = observe(
        (1.0, chat_event("a b c")), (2.0, chat_event("d")), (2.0, usage_event(7, 11)), (2.0, b"data: [DONE]\n\n")
    )
    assert (observer.prompt_tokens, observer.output_tokens) == (7, 11)
    assert observer.seconds_per_token == pytest.approx(0.1)
    assert observer.done


def test_one_token_has_no_time_per_token() -> None:
    assert observe((1.0, chat_event("a"))).seconds_per_token is None
    assert observe().seconds_per_token is None


def test_pauses_over_two_seconds_are_stalls_but_not_before_the_first_token() -> None:
    observer = observe(
        (0.0, chat_event(None, role=True)), (9.0, chat_event("a")), (11.5, chat_event("b")), (13.0, chat_event("c"))
    )
    assert observer.stalls == 1
    observer.finish(now=20.0)
    assert observer.stalls == 2


def test_the_client_s_own_pause_is_no_stall() -> None:
    observer = observe((1.0, chat_event("a")))
    observer.forgive_pause(9.0)
    observer.observe_event(event_payloads(chat_event("b"))[0], now=9.1)
    observer.observe_event(b"[DONE]", now=9.1)
    observer.finish(now=30.0)
    assert observer.stalls == 0


@pytest.mark.parametrize(
    "delta",
    ['{"content":"x"}', '{"tool_calls":[{"index":0}]}', '{"reasoning_content":"hm"}'],
    ids=["content", "tool call", "reasoning"],
)
def test_text_comes_in_several_kinds(delta: str) -> None:
    observer = observe((1.0, f'data: {{"choices":[{{"delta":{delta}}}]}}\n\n'.encode()))
    assert observer.text_events == 1
    assert observe((1.0, b'data: {"choices":[{"text":"x"}]}\n\n')).text_events == 1


@pytest.mark.parametrize(
    "data",
    [
        b'{"choices":null}',
        b'{"choices":[null,7]}',
        b'{"usage":{"prompt_tokens":"many"}}',
        b'{"choices":[{"delta":{}}]}',
        b"{}",
    ],
)
def test_odd_objects_count_nothing(data: bytes) -> None:
    observer = ReplyObserver(2.0)
    observer.observe_event(data, now=1.0)
    assert (observer.text_events, observer.prompt_tokens) == (0, None)


def test_an_error_event_is_a_failure() -> None:
    assert observe((1.0, b'event: error\ndata: {"error":{"message":"x"}}\n\n')).failed


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b'"x"', b"\xff"])
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidReplyError):
        ReplyObserver(2.0).observe_event(data, now=1.0)
    with pytest.raises(InvalidReplyError):
        ReplyObserver(2.0).observe_body(data)


def test_a_whole_reply_tells_its_usage() -> None:
    observer = ReplyObserver(2.0)
    observer.observe_body(chat_reply("hi"))
    assert (observer.prompt_tokens, observer.output_tokens, observer.done) == (3, 2, True)
