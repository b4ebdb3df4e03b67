"""Answers of replicas out of bytes: the same wherever reads cut them, and exactly one end whatever the bytes are."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.answers import CHUNKED, INTERIM, LENGTH, UNTIL_CLOSE, FakeTransport, Recorder, hear
from tests.waiting import PATIENCE_SECONDS

from tidewheel.gateway.settings import Settings
from tidewheel.gateway.upstream import Pool, UpstreamConnection


@pytest.mark.parametrize(
    ("answer", "status"),
    [(CHUNKED, 200), (LENGTH, 404), (INTERIM, 404), (UNTIL_CLOSE, 200)],
    ids=["chunked", "length", "interim", "until close"],
)
def test_an_answer_is_the_same_for_every_split_position(answer: bytes, status: int) -> None:
    for position in range(len(answer) + 1):
        recorder, _ = hear(answer[:position], answer[position:])
        assert (recorder.status, recorder.body, recorder.ends) == (status, b"hello world", ["complete"]), position
    recorder, _ = hear(*(bytes([byte]) for byte in answer))
    assert (recorder.status, recorder.body, recorder.ends) == (status, b"hello world", ["complete"])
    assert all(name == name.lower() for name, _ in recorder.headers)


@pytest.mark.parametrize("answer", [CHUNKED, LENGTH], ids=["chunked", "length"])
def test_an_answer_cut_at_any_byte_is_broken(answer: bytes) -> None:
    for length in range(len(answer)):
        assert hear(answer[:length])[0].ends == ["broken" if length else "untouched"], length


def test_a_body_that_ends_with_a_reset_is_broken() -> None:
    assert hear(UNTIL_CLOSE, reset=True)[0].ends == ["broken"]


@pytest.mark.parametrize(
    ("answer", "reusable"),
    [
        (CHUNKED, True),
        (LENGTH, True),
        (LENGTH + b"HTTP/1.1 200 OK\r\n", False),
        (LENGTH.replace(b"Content", b"Connection: close\r\nContent"), False),
        (LENGTH.replace(b"1.1", b"1.0"), False),
    ],
    ids=["chunked", "length", "more than asked for", "connection: close", "HTTP/1.0"],
)
def test_only_a_connection_in_a_known_state_is_used_again(answer: bytes, reusable: bool) -> None:
    recorder, connection = hear(answer, hang_up=False)
    assert recorder.ends == ["complete"]
    assert (connection.reusable and connection.is_open) == reusable


def test_a_head_without_end_is_refused() -> None:
    assert hear(b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n"] * 100, hang_up=False)[0].ends == ["broken"]


def test_a_request_on_a_connection_that_closed_meanwhile_is_told_at_once() -> None:
    connection, recorder = UpstreamConnection(Pool("127.0.0.1", 1, settings=Settings())), Recorder()
    transport = FakeTransport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    transport.closed = True
    connection.connection_lost(None)
    connection.send([b"GET / HTTP/1.1\r\n\r\n"], recorder)
    assert recorder.ends == ["untouched"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([CHUNKED, LENGTH, INTERIM, UNTIL_CLOSE, b"\r\n"]))))
def test_whatever_comes_there_is_one_end(reads: list[bytes]) -> None:
    """llm-d-router#1147."""
    assert len(hear(*reads)[0].ends) == 1


async def test_a_port_nobody_listens_on_is_unreachable_in_time() -> None:
    from tidewheel.gateway.upstream import UnreachableError

    pool = Pool("127.0.0.1", 1, settings=Settings(connect_timeout=0.5))
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(UnreachableError):
            await pool.connect()
