"""Clients that mean harm, and a control plane in a frenzy: others are served, and what is held stays bounded."""

import asyncio
import fcntl
import gc
import re
import socket
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest
from tests.gateway.conftest import Connect, StartGateway, StartUpstream
from tests.gateway.programs import Gateway, table, write_routing
from tests.gateway.sse_events import event_payloads
from tests.gateway.upstreams import Call, chat_event, says
from tests.gateway.wire import HI, WireClient, ask, post
from tests.waiting import eventually

import tidewheel.gateway
from tidewheel.gateway.process import raise_file_limit
from tidewheel.gateway.server import ClientConnection

component = pytest.mark.component
STREAM = {**HI, "stream": True}


@component
async def test_while_many_trickle_their_heads_and_bodies_others_are_served(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    """Slowloris: each of them is refused in time, however lively it trickles."""
    gateway = await serve(
        {"v1": [await start_upstream(says("hi"))]},
        *("--header-timeout", "1", "--body-timeout", "1", "--min-body-rate", "1000"),
    )
    whole = post(HI)
    head_end = whole.index(b"\r\n\r\n") + 4
    slow = [await connect(gateway) for _ in range(40)]
    refused = 0

    async def trickle(client: WireClient, sent: int) -> None:
        nonlocal refused
        client.writer.write(whole[:sent])
        answering = asyncio.ensure_future(client.read_head())
        for byte in whole[sent:-1]:
            with suppress(RuntimeError):  # uvloop's word for a connection that is closed
                client.writer.write(bytes([byte]))
            done, _ = await asyncio.wait({answering}, timeout=0.1)
            if done:
                break
        status, headers = await answering
        await client.read_body(headers)
        assert status == 408
        assert await client.at_end()
        refused += 1

    slowly = [trickle(client, 5 if number % 2 else head_end) for number, client in enumerate(slow)]
    trickling = asyncio.gather(*slowly)
    for _ in range(3):
        assert (await ask(gateway, HI))[0] == 200
    await trickling
    assert refused == 40


async def pour(client: WireClient, piece: bytes) -> int:
    """Send it for ever; how much was sent when the gateway hung up or answered."""
    answering = asyncio.ensure_future(client.reader.read(1))
    sent = 0
    try:
        while not answering.done():
            client.writer.write(piece)
            sent += len(piece)
            await client.writer.drain()
            await asyncio.sleep(0)
    except (ConnectionError, RuntimeError):  # uvloop says the latter of a connection that is closed
        pass
    with suppress(ConnectionError):
        await answering
    return sent


BOMBS = {
    "headers": (b"POST /v1/completions HTTP/1.1\r\nhost: a\r\n", b"x-a: " + b"y" * 995 + b"\r\n"),
    "one header": (b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nx-a: ", b"y" * 1000),
    "target": (b"POST /", b"y" * 1000),
    "chunks": (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n", b"3e8\r\n" + b"y" * 1000 + b"\r\n"),
    "chunk extension": (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1;", b"y" * 1000),
    "trailers": (
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
        b"x-a: " + b"y" * 995 + b"\r\n",
    ),
    "blank lines": (b"", b"\r\n" * 500),
    "nested JSON": (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\n", b"[" * 1000),
}


@component
@pytest.mark.long
async def test_what_has_no_end_is_refused_before_it_is_kept(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect
) -> None:
    """Header and body bombs."""
    gateway = await serve(
        {"v1": [await start_upstream(says("hi"))]},
        *("--max-body-bytes", "100000", "--header-timeout", "2", "--keep-alive-timeout", "2"),
    )
    for name, (beginning, piece) in BOMBS.items():
        client = await connect(gateway)
        client.writer.write(beginning)
        async with asyncio.timeout(60):
            await pour(client, piece)
        if name == "blank lines":
            continue  # nothing is kept of them
        for connection in connections():
            assert connection._parser.body_bytes <= 200_000, name
    assert (await ask(gateway, HI))[0] == 200


def connections() -> list[ClientConnection]:
    """Those of the gateway in this process that are open."""
    found = [each for each in gc.get_objects() if isinstance(each, ClientConnection)]
    return [each for each in found if each._transport is not None and not each._transport.is_closing()]


@component
@pytest.mark.long
@pytest.mark.parametrize("readers", [100, 1000])
async def test_slow_readers_cost_bounded_memory_each(
    start_upstream: StartUpstream, serve: StartGateway, readers: int
) -> None:
    """bun#32469, vercel/ai#9475: what waits for a client that takes nothing is bounded stream by stream."""
    raise_file_limit()
    begun = 0

    async def much(call: Call) -> None:
        nonlocal begun
        call.begin_stream()
        begun += 1
        assert call.writer is not None
        for _ in range(100):
            call.chunk(chat_event("x" * 4000))
            await call.writer.drain()
        await asyncio.Event().wait()

    limit, one_read, little = 8192, 262_144, 65_536
    gateway = await serve(
        {"v1": [await start_upstream(much)]},
        *("--write-buffer-bytes", str(limit), "--stalled-reader-timeout", "3000"),
    )
    clients = [await tiny_client(gateway) for _ in range(readers)]
    try:
        for client in clients:
            client.sendall(post(STREAM))
        await eventually(lambda: begun == readers, within_seconds=240)
        await eventually(lambda: all(map(is_held_back, connections())), within_seconds=240, every=0.2)
        assert len(connections()) == readers
        assert 0 < max(map(unsent, connections())) <= 2 * limit + one_read + little
    finally:
        for client in clients:
            client.close()
    await gateway.until("tidewheel_streams_open", 0, seconds=240)


async def tiny_client(gateway: Gateway) -> socket.socket:
    """It takes a few kilobytes into its socket and no more."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", gateway.data_port))
    return client


def unsent(connection: ClientConnection) -> int:
    """What waits for a client, in the gateway and in the kernel."""
    transport = connection._transport
    if transport is None or transport.is_closing():
        return 0
    in_socket = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    return transport.get_write_buffer_size() + int.from_bytes(in_socket, sys.byteorder)


def is_held_back(connection: ClientConnection) -> bool:
    return connection._stall_timer is not None


@component
async def test_fifty_changes_of_the_table_a_second_disturb_nobody(
    start_upstream: StartUpstream, start: StartGateway, tmp_path: Path
) -> None:
    versions = ("v1", "v2", "v3")
    ends = {f"default/chat-{name}": [(await start_upstream(says(name))).address] for name in versions}
    path, changes = tmp_path / "routing.json", 100

    def change(number: int) -> None:
        shares = [(10_000, 0, 0), (5000, 5000, 0), (0, 9999, 1), (0, 0, 10_000)][number % 4]
        weights = {name: share for name, share in zip(versions, shares, strict=True) if share or number % 3}
        present = {f"default/chat-{name}": ends[f"default/chat-{name}"] for name in weights}
        write_routing(path, [table(weights=weights, generation=number + 1, salt=f"s{number}")], present)

    change(0)
    gateway = await start("--static", str(path), "--static-poll-seconds", "0.005")
    done = asyncio.Event()
    served = 0

    async def load() -> None:
        nonlocal served
        while not done.is_set():
            status, headers, body = await ask(gateway, STREAM)
            version = headers["x-tidewheel-version"]
            assert status == 200
            assert version.encode() in body, "the version that was said is the version that answered"
            assert event_payloads(body)[-1] == b"[DONE]"
            served += 1

    loads = [asyncio.create_task(load()) for _ in range(8)]
    for number in range(1, changes + 1):
        change(number)
        await asyncio.sleep(0.02)
    await eventually(lambda: obeyed(gateway, changes + 1), within_seconds=240)
    done.set()
    await asyncio.gather(*loads)
    assert served > 8
    assert await gateway.value("tidewheel_request_errors_total") == 0
    await gateway.until("tidewheel_in_flight", 0)


async def obeyed(gateway: Gateway, generation: int) -> bool:
    found = (await gateway.get("/routing/default/chat", admin=True))[1]["generation"]
    return bool(found == generation)


def test_nothing_is_measured_by_a_clock_that_people_and_daemons_set() -> None:
    """A wall clock that jumps must not end a request: durations are of the monotonic clock, dates of the other."""
    folder = Path(tidewheel.gateway.__file__).parent
    dates = re.compile(r"\btime\.time\(|\bdatetime\.now\(|\butcnow\(")
    users = {path.name for path in folder.rglob("*.py") if dates.search(path.read_text())}
    assert users <= {
        "serving.py",
        "worker.py",
        "lastgood.py",
        "static.py",
        "discovery.py",
        "keyfile.py",
        "notices.py",
        "desk.py",
    }


SMUGGLED = {
    "te and cl": b"transfer-encoding: chunked\r\ncontent-length: 4",
    "cl and te": b"content-length: 4\r\ntransfer-encoding: chunked",
    "two te": b"transfer-encoding: chunked\r\ntransfer-encoding: identity",
    "te with a tab": b"transfer-encoding:\tchunked, gzip",
    "te quoted": b'transfer-encoding: "chunked"',
    "two cl": b"content-length: 4\r\ncontent-length: 50",
}


@component
@pytest.mark.parametrize("name", SMUGGLED)
async def test_a_request_inside_a_request_reaches_no_engine(
    start_upstream: StartUpstream, serve: StartGateway, connect: Connect, name: str
) -> None:
    """node-http-proxy#1721: 400 and the end of the connection, so that nothing after it is taken for a request."""
    upstream = await start_upstream(says("hi"))
    gateway = await serve({"v1": [upstream]})
    client = await connect(gateway)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n" + SMUGGLED[name]
    client.writer.write(head + b"\r\n\r\n0\r\n\r\n" + post(HI))
    status, headers = await client.read_head()
    assert status == 400
    await client.read_body(headers)
    assert await client.at_end()
    assert not upstream.calls
