"""Requests out of bytes: the same wherever reads cut them, and refused when they are not what they should be."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.malformed import HEAD, PIPELINE, REFUSED

from tidewheel.gateway.errors import InvalidRequestError
from tidewheel.gateway.requests import Phase, Request, RequestParser
from tidewheel.gateway.settings import Settings

SETTINGS = Settings(max_body_bytes=1000, max_header_bytes=500, max_headers=10)


def parse(*reads: bytes, settings: Settings = SETTINGS) -> list[Request]:
    parser = RequestParser(settings)
    return [request for read in reads for request in parser.feed(read)]


def test_requests_are_the_same_for_every_split_position() -> None:
    whole = parse(PIPELINE)
    assert [(request.method, request.path, request.body, request.keep_alive) for request in whole] == [
        ("POST", "/v1/completions", b"hello", True),
        ("POST", "/v1/chat/y", b"abcde", True),
        ("GET", "/healthz", b"", False),
    ]
    assert whole[0].headers[b"x-a"] == b"1, 2"
    assert b"trailer" not in whole[1].headers
    for position in range(len(PIPELINE) + 1):
        assert parse(PIPELINE[:position], PIPELINE[position:]) == whole, position
    assert parse(*(bytes([byte]) for byte in PIPELINE)) == whole


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_a_request_is_refused_wherever_it_is_cut(name: str) -> None:
    """node-http-proxy#1721 and the request smuggling set."""
    data = REFUSED[name]
    for reads in ((data,), tuple(bytes([byte]) for byte in data)):
        with pytest.raises(InvalidRequestError) as caught:
            parse(*reads)
        assert caught.value.status == 400
        assert caught.value.message.endswith(".")


def test_an_upgrade_is_answered_as_if_it_had_not_been_asked_for() -> None:
    """RFC 9110 7.8: a server may ignore Upgrade; the connection is closed after the answer."""
    upgrade = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert [request.keep_alive for request in parse(upgrade)] == [False]


def test_junk_behind_a_whole_request_closes_after_its_answer() -> None:
    assert [request.keep_alive for request in parse(HEAD + b"\r\n" + b"\x00junk")] == [False]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (HEAD + b"Content-Length: 1001\r\n\r\n", 413),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001, 413),
        (HEAD + b"X-A: " + b"x" * 600, 431),
        (b"GET /" + b"x" * 600, 431),
        (HEAD + b"".join(b"X-%d: 1\r\n" % number for number in range(20)) + b"\r\n", 431),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1;" + b"e" * 2000, 400),
    ],
    ids=["length", "chunked body", "header bytes", "target", "header lines", "chunk extension"],
)
def test_limits_are_held_before_the_rest_comes(data: bytes, status: int) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(data)
    assert caught.value.status == status


def test_a_body_of_exactly_the_limit_passes() -> None:
    assert len(parse(HEAD + b"Content-Length: 1000\r\n\r\n" + b"x" * 1000)[0].body) == 1000


def test_one_byte_chunks_pass() -> None:
    body = b"".join(b"1\r\nx\r\n" for _ in range(900)) + b"0\r\n\r\n"
    assert parse(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body)[0].body == b"x" * 900


def test_limits_start_again_with_every_request_of_a_connection() -> None:
    request = HEAD + b"X-A: " + b"x" * 300 + b"\r\n\r\n"
    assert len(parse(*[request] * 5)) == 5
    assert len(parse(request * 5, settings=replace(SETTINGS, max_header_bytes=10_000))) == 5


def test_the_phase_tells_how_far_a_request_is() -> None:
    parser = RequestParser(SETTINGS)
    assert parser.phase is Phase.IDLE
    parser.feed(b"POST / HT")
    assert parser.phase is Phase.HEAD
    parser.feed(b"TP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nab")
    assert parser.phase is Phase.BODY
    assert parser.expects_continue
    assert parser.body_bytes == 2
    parser.feed(b"c")
    assert parser.phase is Phase.IDLE


def test_http_1_0_is_answered_without_chunks() -> None:
    request = parse(b"GET /healthz HTTP/1.0\r\n\r\n")[0]
    assert not request.chunked_replies
    assert not request.keep_alive


PARTS = st.one_of(
    st.binary(max_size=30), st.sampled_from([PIPELINE, HEAD, *REFUSED.values(), b"\r\n", b"0\r\n\r\n", b"ff\r\n"])
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PARTS, max_size=6))
def test_whatever_comes_is_a_request_or_a_typed_refusal(reads: list[bytes]) -> None:
    parser = RequestParser(SETTINGS)
    for read in reads:
        try:
            requests = parser.feed(read)
        except InvalidRequestError as error:
            assert 400 <= error.status < 500  # noqa: PT017
            return
        assert all(len(request.body) <= SETTINGS.max_body_bytes for request in requests)
        if any(not request.keep_alive for request in requests):
            return
