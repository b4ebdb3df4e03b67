"""However much replicas say at once, a turn of the loop stays short, and everybody gets one."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.gateway.answers import LENGTH, FakeTransport, Recorder, receive

from tidewheel.gateway.settings import Settings
from tidewheel.gateway.turns import READ_BYTES, TURN_BYTES, Turns
from tidewheel.gateway.upstream import Pool, UpstreamConnection

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"  # the body ends with the connection
BODY = bytes(range(251)) * 600  # some 150 KB, of which no two places look alike to each other
STREAMS = 12

Answered = tuple[Recorder, UpstreamConnection]
Answers = Callable[[bytes], Awaitable[Answered]]


@pytest.fixture
async def answers() -> AsyncIterator[Answers]:
    """Starts a connection whose whole answer lies in its socket already."""
    pool, sockets = Pool("127.0.0.1", 1, settings=Settings(), turns=Turns()), list[socket.socket]()
    connections = list[UpstreamConnection]()

    async def answer(data: bytes) -> Answered:
        ours, theirs = socket.socketpair()
        sockets.append(theirs)
        theirs.setblocking(False)
        recorder = Recorder()
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: UpstreamConnection(pool), sock=ours)
        connections.append(connection)
        connection.send([b"GET / HTTP/1.1\r\n\r\n"], recorder)
        connection.pause()
        assert theirs.send(data) == len(data)
        theirs.shutdown(socket.SHUT_WR)
        return recorder, connection

    yield answer
    for connection in connections:
        connection.abort()
    for theirs in sockets:
        theirs.close()
    await asyncio.sleep(0)


async def flood(answers: Answers) -> list[Answered]:
    """Streams that have begun, with much more to say."""
    found = [await answers(HEAD + BODY) for _ in range(STREAMS)]
    for _, connection in found:
        connection.resume()
    while not all(recorder.status for recorder, _ in found):
        await asyncio.sleep(0)
    return found


async def test_a_turn_handles_no_more_than_its_budget_and_nobody_is_left_behind(answers: Answers) -> None:
    streams = await flood(answers)
    most = 0
    while not any(recorder.ends for recorder, _ in streams):
        before = sum(len(recorder.body) for recorder, _ in streams)
        await asyncio.sleep(0)
        most = max(most, sum(len(recorder.body) for recorder, _ in streams) - before)
    assert most <= 2 * (TURN_BYTES + READ_BYTES) <= 100_000
    assert min(len(recorder.body) for recorder, _ in streams) > len(BODY) - TURN_BYTES - 2 * READ_BYTES
    while not all(recorder.ends for recorder, _ in streams):
        await asyncio.sleep(0)
    assert all((recorder.body, recorder.ends) == (BODY, ["complete"]) for recorder, _ in streams)


async def test_a_reply_that_begins_is_heard_at_once_beside_streams_that_fill_every_turn(answers: Answers) -> None:
    streams = await flood(answers)
    recorder, connection = await answers(HEAD + b"hello")
    connection.resume()
    for _ in range(3):
        await asyncio.sleep(0)
    assert recorder.body == b"hello"
    assert not any(recorder.ends for recorder, _ in streams)


async def test_a_paused_stream_is_told_nothing_of_what_was_held_back_until_it_goes_on(answers: Answers) -> None:
    streams = await flood(answers)
    recorder, connection = streams[-1]
    connection.pause()
    told = len(recorder.body)
    while not all(recorder.ends for recorder, _ in streams[:-1]):
        await asyncio.sleep(0)
    assert len(recorder.body) == told
    connection.resume()
    while not recorder.ends:
        await asyncio.sleep(0)
    assert (recorder.body, recorder.ends) == (BODY, ["complete"])


async def test_what_was_held_back_is_told_when_the_connection_is_lost(answers: Answers) -> None:
    streams = await flood(answers)
    recorder, connection = streams[-1]
    told = len(recorder.body)
    connection.connection_lost(ConnectionResetError())
    assert len(recorder.body) == told + READ_BYTES
    assert recorder.ends == ["broken"]


class Reading(FakeTransport):
    """Whether it reads."""

    reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


async def test_a_connection_whose_client_took_nothing_at_the_end_is_read_again_for_the_next_request() -> None:
    pool = Pool("127.0.0.1", 1, settings=Settings())
    connection, transport = UpstreamConnection(pool), Reading()
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.send([b"GET / HTTP/1.1\r\n\r\n"], Recorder())
    receive(connection, LENGTH)
    connection.pause()
    connection.release()
    assert transport.reads
    assert await pool.connect() is connection
    connection.abort()
