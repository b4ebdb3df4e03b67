"""A synthetic engine: real sockets, scripted answers, and a record of what it was asked."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson
from tests.waiting import PATIENCE_SECONDS


@dataclass
class Call:
    """One request as it came, and how its connection went on."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    writer: asyncio.StreamWriter | None = None

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        assert self.writer is not None
        self.writer.write(data)

    def chunk(self, data: bytes) -> None:
        """One chunk of a chunked body."""
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def begin_stream(self) -> None:
        """Status and headers of an event stream."""
        self.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    def end_chunks(self) -> None:
        """The body is complete."""
        self.send(b"0\r\n\r\n")

    def reply(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        """A whole answer."""
        lines = [
            f"HTTP/1.1 {status} X",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers),
        ]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def hang_up(self) -> None:
        """Reset the connection."""
        assert self.writer is not None
        self.writer.transport.abort()


Behaviour = Callable[[Call], Awaitable[None]]


class Upstream:
    """Listens on a free port; ``behave`` answers each request."""

    def __init__(self, behave: Behaviour) -> None:
        self.behave = behave
        self.calls: list[Call] = []
        self.connections = 0
        self.open_connections = 0
        self.arrived = asyncio.Condition()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    async def start(self, host: str = "127.0.0.1") -> None:
        """Listen; again on the same port after ``stop``."""
        self._server = await asyncio.start_server(self._serve, host, self.port, backlog=4096)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections and cut those that are open."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def next_call(self, count: int = 1) -> Call:
        """The call of this number, once it has come."""
        async with asyncio.timeout(PATIENCE_SECONDS), self.arrived:
            await self.arrived.wait_for(lambda: len(self.calls) >= count)
        return self.calls[count - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open_connections += 1
        number = self.connections
        try:
            while await self._serve_one(reader, writer, number):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open_connections -= 1
            for call in self.calls:
                if call.connection == number:
                    call.closed.set()
            writer.transport.abort()
            self._tasks.discard(task)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (item.partition(":") for item in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        call = Call(line, headers, body, number, writer=writer)
        if line.startswith("GET /health") and not getattr(self.behave, "handles_health", False):
            call.reply(200, b'{"healthy": true, "seconds_without_progress": 0}')
            await writer.drain()
            return True
        self.calls.append(call)
        async with self.arrived:
            self.arrived.notify_all()
        gone = asyncio.ensure_future(reader.read(1))
        answering = asyncio.ensure_future(self.behave(call))
        try:
            await asyncio.wait({gone, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                call.closed.set()
                return False
            answering.result()
            await writer.drain()
        finally:
            answering.cancel()
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await gone
        return not gone.done() or gone.cancelled()


@asynccontextmanager
async def running_upstream(behave: Behaviour, *, host: str = "127.0.0.1") -> AsyncIterator[Upstream]:
    """A synthetic engine for the length of the block."""
    upstream = Upstream(behave)
    await upstream.start(host)
    try:
        yield upstream
    finally:
        await upstream.stop()


def chat_event(text: str | None, *, finish: str | None = None, role: bool = False) -> bytes:
    """A chunk as engines send it."""
    delta = {"role": "assistant", "content": ""} if role else {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "chat", "choices": [choice]}
    return b"data: " + orjson.dumps(body) + b"\n\n"


def usage_event(prompt: int, completion: int) -> bytes:
    """The last chunk of a stream that was asked for usage."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "chat",
        "choices": [],
        "usage": usage,
    }
    return b"data: " + orjson.dumps(body) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def numbered(*events: bytes, first: int = 1) -> list[bytes]:
    """The same events as a gateway shows them."""
    return [b"id: %d\n%b" % (number, event) for number, event in enumerate(events, first)]


def chat_stream(*words: str) -> list[bytes]:
    """All events of a reply."""
    return [chat_event(None, role=True), *map(chat_event, words), chat_event(None, finish="stop"), DONE]


def chat_reply(text: str) -> bytes:
    """A reply that is not streamed."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "chat", "choices": [choice]}
    return orjson.dumps({**body, "usage": usage})


def streams(events: Sequence[bytes], *, pause: float = 0.0) -> Behaviour:
    """Answers with these events, each in a write of its own."""

    async def behave(call: Call) -> None:
        call.begin_stream()
        for event in events:
            call.chunk(event)
            await asyncio.sleep(pause)
        call.end_chunks()

    return behave


def replies(status: int, body: bytes, *headers: tuple[str, str]) -> Behaviour:
    """Answers with this."""

    async def behave(call: Call) -> None:
        call.reply(status, body, ("content-type", "application/json"), *headers)

    return behave


def says(text: str) -> Behaviour:
    """Answers streams and whole replies with a text, one event a word."""

    async def behave(call: Call) -> None:
        if orjson.loads(call.body).get("stream"):
            await streams(chat_stream(*text.split()))(call)
        else:
            await replies(200, chat_reply(text))(call)

    return behave


def pauses(go_on: asyncio.Event) -> Behaviour:
    """Begins a stream with one word, and ends it when told to."""

    async def behave(call: Call) -> None:
        call.begin_stream()
        call.chunk(chat_event("one"))
        await go_on.wait()
        call.chunk(DONE)
        call.end_chunks()

    return behave


async def hangs(call: Call) -> None:
    """Never answers."""
    await asyncio.Event().wait()
